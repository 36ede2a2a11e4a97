package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pkg/api"
)

// checkListen refuses addresses that cannot be listened on.
func checkListen(flag, address string) error {
	if address == "" {
		return nil
	}
	if path, is := strings.CutPrefix(address, api.UnixScheme); is {
		return checkSocketPath(flag, address, path)
	}
	_, port, err := net.SplitHostPort(address)
	_, portErr := net.LookupPort("tcp", cmp.Or(port, address))
	switch {
	case err != nil && portErr == nil:
		return fmt.Errorf("%s: %q has no host: give 127.0.0.1:%[2]s, or :%[2]s for every interface", flag, address)
	case err != nil:
		return fmt.Errorf("%s: %q is neither HOST:PORT nor unix:///PATH", flag, address)
	case portErr != nil:
		return fmt.Errorf("%s: %q is not a port: give one up to 65535, or 0 for any that is free", flag, port)
	}
	return nil
}

func checkSocketPath(flag, address, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s: %q has no absolute path, as in unix:///run/tandem.sock", flag, address)
	}
	return nil
}

// checkAdvertise refuses addresses that others cannot connect to.
func checkAdvertise(flag, address string) error {
	if address == "" {
		return nil
	}
	if path, is := strings.CutPrefix(address, api.UnixScheme); is {
		return checkSocketPath(flag, address, path)
	}
	host, port, err := net.SplitHostPort(address)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || portErr != nil || number == 0 {
		return fmt.Errorf("%s: %q is neither HOST:PORT nor unix:///PATH", flag, address)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%s: nobody can connect to %s, which means every interface: name one of this host's addresses", flag, address)
	}
	return nil
}

// checkKVPlace refuses wrong values of --kv-listen and --kv-advertise.
func checkKVPlace(listen, advertise string) error {
	if strings.HasPrefix(listen, api.UnixScheme) {
		return errors.New("--kv-listen: give host:port; --kv-socket is for the Unix socket")
	}
	if err := checkListen("--kv-listen", listen); err != nil {
		return err
	}
	if strings.HasPrefix(advertise, api.UnixScheme) {
		return errors.New("--kv-advertise: give host:port; --kv-socket is for the Unix socket")
	}
	return checkAdvertise("--kv-advertise", advertise)
}

// dialled is what to dial to reach a listener, empty if it is nil.
func dialled(listener net.Listener) string {
	if listener == nil {
		return ""
	}
	return addressOf(listener.Addr())
}

// everywhere says whether a listener is on all of the host's interfaces.
func everywhere(listener net.Listener) bool {
	if listener == nil {
		return false
	}
	at, is := listener.Addr().(*net.TCPAddr)
	return is && at.IP.IsUnspecified()
}

// addressOf is what to dial on this machine to reach a listener: "host:port" or
// "unix:///path".
func addressOf(listening net.Addr) string {
	switch at := listening.(type) {
	case *net.UnixAddr:
		return api.UnixScheme + at.String()
	case *net.TCPAddr:
		if at.IP.IsUnspecified() { // every interface, this one too
			return net.JoinHostPort("127.0.0.1", fmt.Sprint(at.Port))
		}
	}
	return listening.String()
}

// advertised is the address to tell others: the one asked for, or the one
// listened on; if that is every interface, this host's first address.
func advertised(asked string, listening net.Addr) (string, error) {
	if asked != "" {
		return asked, nil
	}
	tcp, is := listening.(*net.TCPAddr)
	if !is || !tcp.IP.IsUnspecified() {
		return addressOf(listening), nil
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("find this host's address: %w; pass --advertise HOST:PORT", err)
	}
	host := "127.0.0.1"
	for _, a := range addresses {
		if network, is := a.(*net.IPNet); is && network.IP.IsGlobalUnicast() {
			host = network.IP.String()
			break
		}
	}
	return net.JoinHostPort(host, fmt.Sprint(tcp.Port)), nil
}

// kvPlace says where a worker receives KV over TCP.
type kvPlace struct {
	// listen is host:port.
	listen string
	// advertise is the address for others. If it is empty, the address is made of host, which
	// is this host's name for others, and the port; without host, of listen.
	advertise, host string
}

// kvPlaceOf is where to receive KV beside a main listener: by default on a free port of its host,
// or of this machine if it is a socket.
func kvPlaceOf(listen, advertise, kvListen, kvAdvertise string) kvPlace {
	place := kvPlace{listen: kvListen, advertise: kvAdvertise}
	main, _, err := net.SplitHostPort(listen)
	beside := err == nil && !strings.HasPrefix(listen, api.UnixScheme)
	if place.listen == "" {
		place.listen = "127.0.0.1:0"
		if beside {
			place.listen = net.JoinHostPort(main, "0")
		}
	}
	host, _, err := net.SplitHostPort(place.listen)
	told, _, toldErr := net.SplitHostPort(advertise)
	if err == nil && toldErr == nil && !strings.HasPrefix(advertise, api.UnixScheme) && (host == main || isEvery(host)) {
		place.host = told
	}
	return place
}

func isEvery(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// address is the address of a listener there for others.
func (k kvPlace) address(listening net.Addr) (string, error) {
	if tcp, is := listening.(*net.TCPAddr); is && k.advertise == "" && k.host != "" {
		return net.JoinHostPort(k.host, fmt.Sprint(tcp.Port)), nil
	}
	return advertised(k.advertise, listening)
}

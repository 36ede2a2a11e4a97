package mesh

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/boundedfile"
)

// leastMetricsToken is the length of the shortest token for --metrics, bytes.
const leastMetricsToken = 16

// readMetricsToken reads what scrapers have to show.
func readMetricsToken(file string) (string, error) {
	token, err := boundedfile.ReadSecret(file)
	if err != nil {
		return "", err
	}
	if len(token) < leastMetricsToken {
		return "", fmt.Errorf("%s has fewer than %d characters: draw a token at random", file, leastMetricsToken)
	}
	return token, nil
}

// checkMetricsToken refuses a file that lets nobody see the metrics.
func (o *Options) checkMetricsToken() error {
	if o.MetricsTokenFile == "" {
		return nil
	}
	if o.Metrics == "" && o.HTTP == "" {
		return errors.New("--metrics-token-file: is for --metrics and --http, of which neither is given")
	}
	if _, err := readMetricsToken(o.MetricsTokenFile); err != nil {
		return fmt.Errorf("--metrics-token-file: %w", err)
	}
	return nil
}

// withMetricsToken has a handler answer only who shows the token, if there is one. Its file is read
// each time, so that it can be replaced.
func (p *process) withMetricsToken(handler http.Handler) http.Handler {
	file := p.options.MetricsTokenFile
	if file == "" {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := readMetricsToken(file)
		if err != nil {
			p.logger.ErrorContext(r.Context(), "the token for metrics cannot be read", slog.Any("error", err))
			http.Error(w, "the token cannot be read here: see the log", http.StatusServiceUnavailable)
			return
		}
		if shown := r.Header.Get("Authorization"); subtle.ConstantTimeCompare([]byte(shown), []byte("Bearer "+token)) != 1 {
			w.Header().Set("Www-Authenticate", "Bearer")
			http.Error(w, "send the header \"Authorization: Bearer TOKEN\" with the token of --metrics-token-file", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// operatorsOrToken has a handler answer operators, or where nobody is asked for a key, who shows the
// token for metrics. Which of them it is, is known once the router is made.
func (p *process) operatorsOrToken(handler http.Handler) http.Handler {
	operators, token := p.authenticated(auth.Operate, handler), p.withMetricsToken(handler)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.auth != nil {
			operators.ServeHTTP(w, r)
		} else {
			token.ServeHTTP(w, r)
		}
	})
}

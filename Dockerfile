# The image for those who have a registry. Without one, `make images` builds the
# same out of what Go builds on the machine: deploy/images.
#
#   docker build -t tandem:dev --build-arg VERSION=$(tools/version) --build-arg REVISION=$(tools/version --revision) .
#
# It builds with the builder of any engine since 17.09, with and without BuildKit.
# The base images are arguments, for mirrors and for other releases of Go and Debian;
# both have to have the same C library or an older one where it is built.
ARG BUILD_IMAGE=golang:1.26-bookworm
ARG RUN_IMAGE=gcr.io/distroless/base-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
ARG GOPROXY
ARG GOSUMDB
ENV GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=1
WORKDIR /src
# The modules' own files first: what they require is downloaded once.
COPY proto/go.mod proto/go.sum proto/
COPY client/go.mod client/go.sum client/
COPY pkg/go.mod pkg/go.sum pkg/
COPY services/kvtransfer/go.mod services/kvtransfer/go.sum services/kvtransfer/
COPY services/prefill/go.mod services/prefill/go.sum services/prefill/
COPY services/decode/go.mod services/decode/go.sum services/decode/
COPY services/router/go.mod services/router/go.sum services/router/
COPY loadtest/go.mod loadtest/go.sum loadtest/
COPY simulate/go.mod simulate/go.sum simulate/
COPY cmd/tandem/go.mod cmd/tandem/go.sum cmd/tandem/
RUN cd cmd/tandem && go mod download
COPY proto proto
COPY client client
COPY pkg pkg
COPY services services
COPY loadtest loadtest
COPY simulate simulate
COPY cmd cmd
# What the binary says of itself; the context has no .git to ask.
ARG VERSION=devel
ARG REVISION
# The Go resolver and no glibc one, which would open further libraries by name.
RUN cd cmd/tandem && \
    flags="-X github.com/tandem-serving/tandem/pkg/telemetry.version=${VERSION} -X github.com/tandem-serving/tandem/pkg/telemetry.revision=${REVISION}" && \
    go build -trimpath -ldflags="-s -w ${flags}" -tags=netgo,osusergo -o /out/bin/tandem .
COPY models /out/models
COPY LICENSE NOTICE /out/
RUN mkdir -m 700 /state

FROM ${RUN_IMAGE}
COPY --from=build /out /
COPY --from=build --chown=65532:65532 /state /state
USER 65532:65532
WORKDIR /
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD ["/bin/tandem", "probe", "127.0.0.1:7070"]
ENTRYPOINT ["/bin/tandem"]
# up asks clients for a key, and prints the first one. Nothing is encrypted: publish the ports behind TLS only.
CMD ["up", "--listen=0.0.0.0:7070", "--http=0.0.0.0:8080", "--metrics=0.0.0.0:9090", "--auth=required", "--insecure"]
EXPOSE 7070 8080 9090

# Tandem out of what deploy/images/build puts together.
FROM scratch
COPY root /
# For a router's last view of its mesh, by TANDEM_ROUTER_STATE_DIR: a volume there has
# this owner.
COPY --chown=65532:65532 state /state
ENV PATH=/bin
# Nobody in particular: everything here may be read, and nothing but /state is written.
USER 65532:65532
WORKDIR /
# A router's and workers' default; deploy/compose says it per service.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD ["/bin/tandem", "probe", "127.0.0.1:7070"]
# tandem is the first process of the container: it takes SIGTERM as "finish and leave".
ENTRYPOINT ["/bin/tandem"]
# up asks clients for a key, and prints the first one. Nothing is encrypted: publish the ports behind TLS only.
CMD ["up", "--listen=0.0.0.0:7070", "--http=0.0.0.0:8080", "--metrics=0.0.0.0:9090", "--auth=required", "--insecure"]
EXPOSE 7070 8080 9090

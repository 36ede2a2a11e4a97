ARG BASE=tandem:dev
FROM ${BASE}
COPY etcd /bin/etcd
COPY --chown=65532:65532 data /data
VOLUME /data
HEALTHCHECK --interval=2s --timeout=3s --start-period=30s CMD ["/bin/tandem", "probe", "127.0.0.1:2379"]
ENTRYPOINT ["/bin/etcd"]
CMD ["--data-dir=/data", "--listen-client-urls=http://0.0.0.0:2379", "--advertise-client-urls=http://0.0.0.0:2379"]
EXPOSE 2379

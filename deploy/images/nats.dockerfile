ARG BASE=tandem:dev
FROM ${BASE}
COPY nats-server /bin/nats-server
HEALTHCHECK --interval=2s --timeout=3s --start-period=30s CMD ["/bin/tandem", "probe", "http://127.0.0.1:8222/healthz"]
ENTRYPOINT ["/bin/nats-server"]
CMD ["--addr=0.0.0.0", "--port=4222", "--http_port=8222"]
EXPOSE 4222 8222

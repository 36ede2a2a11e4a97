# Tandem out of what deploy/images/build puts together.
FROM scratch
COPY root /
ENV PATH=/bin
# Nobody in particular: everything here may be read, and nothing needs to be written.
USER 65532:65532
WORKDIR /
# A router's and workers' default; deploy/compose says it per service.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD ["/bin/tandem", "probe", "127.0.0.1:7070"]
# tandem is the first process of the container: it takes SIGTERM as "finish and leave".
ENTRYPOINT ["/bin/tandem"]
CMD ["up", "--listen=0.0.0.0:7070", "--http=0.0.0.0:8080", "--metrics=0.0.0.0:9090"]
EXPOSE 7070 8080 9090

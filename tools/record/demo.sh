#! models=$PWD/../../models; folder=$(mktemp -d) && cd $folder && ln -s $models models
# The whole mesh: a router, a prefill and a decode worker, etcd and NATS.
tandem up 2> up.err | tee up.log &
#until ready
printf 'Tell me of a king.\n' | tandem chat --max-tokens 60
# A second decode worker joins.
#! etcd=$(awk '$1=="etcd"{print $2}' up.log); nats=$(awk '$1=="nats"{print $2}' up.log)
tandem serve --target=decode --id=decode-2 --etcd=$etcd --nats=$nats & decode_2=$!
#until ready
# Four clients ask for the same tale. A worker is killed while they read.
tale() { tandem generate --prompt "Once upon a time" --max-tokens 1800 --seed 7 > $1.txt; }
for i in 1 2 3 4; do tale $i & done; sleep 0.6; kill -9 $decode_2; wait -n; sleep 3
echo "$(grep -c 'workers failed in request' up.err) of the tales went on on the other worker"
sha256sum ?.txt
tandem workers | head -4 | cut -c 1-43
#! kill $(jobs -p); rm -r $folder

package kvtransfer_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
)

var update = flag.Bool("update", false, "write docs/kv-transfer-states.md again")

const statesPage = "../../docs/kv-transfer-states.md"

const statesText = `# The states of a KV transfer

These tables say what every event does to a transfer in every state. Use them to implement or to review one side of the protocol. [kv-transfer.md](kv-transfer.md) specifies the protocol, and [its section on states](kv-transfer.md#states) draws them.

A test generates this page from the tables in [receiver](../pkg/kvtransfer/receiver/table.go) and [sender](../pkg/kvtransfer/sender/table.go), which are the code that runs:

` + "```sh norun: writes the page anew\ngo test ./pkg/kvtransfer -run TestStatesPage -update\n```" + `

How to read a table:

* A row is an event, a column the state of the transfer.
* "Send" names a message to the other side. "Tell" says what this side tells its owner.
* The arrow names the states that the event may lead to, besides the present one.
* "Cannot happen" is a claim like the others: the model test checks it too.

## The receiver

* **reserved**: the ticket is issued, and no sender has used it yet.
* **open**: the receiver accepted. Chunks arrive; some stripes may have committed.
* **committing**: every stripe has committed and nothing is missing. Copies still run.
* **ending**: the transfer is over for its owner. Its blocks are in quarantine until the receiver has read Abort on every stripe, or every stream of the session has ended. If the sender wrote into the blocks itself, they are so until it has also unmapped them.
* **draining**: no chunk can come any more. Copies still run.
* **gone**: committed or drained. The blocks are the owner's.

`

const senderText = `
## The sender

The sender tells an end only when nobody reads a page of the transfer any more.

* **waiting**: Open is not on the stream yet.
* **opening**: Open was sent. The sender waits for the answer.
* **open**: chunks may be sent. Commit may have been sent over some stripes.
* **committing**: Commit was sent over every stripe. The sender waits for the answer.
* **aborting**: the transfer ended early. The sender sends Abort over every stripe, then waits for Drained.
* **reading**: the sender expects nothing of the receiver, but pages are still being read.
* **over**: the sender told the end, and the pages are free.

`

// docs/kv-transfer-states.md shows the current tables.
func TestStatesPage(t *testing.T) {
	want := statesText + receiver.Markdown() + senderText + sender.Markdown()
	if *update {
		if err := os.WriteFile(statesPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(statesPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not current: run go test ./pkg/kvtransfer -run TestStatesPage -update", statesPage)
	}
}

// Every event has a cell in every state.
func TestTablesAreWhole(t *testing.T) {
	for side, table := range map[string]string{"receiver": receiver.Markdown(), "sender": sender.Markdown()} {
		for row := range strings.Lines(table) {
			cells := strings.Split(strings.TrimSpace(row), "|")
			for i, cell := range cells[1 : len(cells)-1] {
				if i > 0 && strings.TrimSpace(cell) == "" {
					t.Errorf("the %s's table has an empty cell: %s", side, row)
				}
			}
		}
	}
}

package ledger_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/reason"
	"github.com/ledgerd/ledgerd/internal/store"
)

// The log's own keys are read without folding it, with a state written down, with
// none, and with events about keys behind it; they are those that folding gives.
func TestR81_OwnKeysAreToldWithoutFolding(t *testing.T) {
	o := newDir(t)
	same := func() {
		t.Helper()
		st, err := store.OpenReadOnly(o.Dir, store.Options{})
		must(t, err)
		defer st.Close()
		own, err := ledger.ReadOwnKeys(o.Dir, st)
		must(t, err)
		old, err := ledger.ReadOld(o.Dir, st)
		must(t, err)
		if !reflect.DeepEqual(own.Checkpoint, old.State.CheckpointKeys()) || !reflect.DeepEqual(own.Permit, old.State.PermitKeys()) || own.Seal != old.State.SealNumber() {
			t.Errorf("%+v, folded %+v %+v %d", own, old.State.CheckpointKeys(), old.State.PermitKeys(), old.State.SealNumber())
		}
	}
	s := start(t, o)
	s.Family()
	same()
	expect(t, s.Control("admin", "key.rotate", `{"key":"checkpoint"}`), reason.ControlDone)
	expect(t, s.Control("admin", "key.rotate", `{"key":"permit"}`), reason.ControlDone)
	same()
	s.Stop()
	same()
	s = start(t, o)
	expect(t, s.Control("admin", "key.retire", `{"key":"checkpoint"}`), reason.ControlDone)
	expect(t, s.Control("admin", "key.rotate", `{"key":"seal"}`), reason.ControlDone)
	same()
	s.Stop()
	must(t, os.RemoveAll(filepath.Join(o.Dir, "state")))
	same()

	// A start that fails for a verifier key names it, whichever it is.
	name := filepath.Join(o.Dir, "keys", "checkpoint-2.vkey")
	good, err := os.ReadFile(name)
	must(t, err)
	must(t, os.Remove(name))
	if _, err := ledger.Open(o); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "keys/checkpoint-2.vkey") {
		t.Errorf("missing: %v", err)
	}
	for _, b := range [][]byte{[]byte(keyText(t, o, "checkpoint.vkey")), []byte(keyText(t, newDir(t), "checkpoint.vkey"))} {
		must(t, os.WriteFile(name, b, 0o600))
		if _, err := ledger.Open(o); !errors.Is(err, ledger.ErrKey) || !strings.Contains(err.Error(), "keys/checkpoint-2.vkey is") {
			t.Errorf("another: %v", err)
		}
	}
	must(t, os.WriteFile(name, good, 0o600))
	start(t, o).Stop()
}

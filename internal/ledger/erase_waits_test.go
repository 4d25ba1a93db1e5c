package ledger

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/events"
)

// What the eraser seals anew under a data key that the writer has just made is not
// on disk before that key.
func TestR83_NothingIsSealedUnderAKeyThatIsNotStored(t *testing.T) {
	var stored atomic.Pointer[[]byte]
	s, err := newSealer("origin", []sealKey{{1, bytes.Repeat([]byte{7}, 32)}}, func(string) ([]byte, bool, error) {
		if b := stored.Load(); b != nil {
			return *b, true, nil
		}
		return nil, false, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_, wrapped, err := s.dataKey("a#17") // as the writer, whose batch is not handed over yet
	if err != nil || wrapped == nil {
		t.Fatal(wrapped, err)
	}
	sealed := make(chan error, 1)
	go func() {
		_, err := s.sealUnder("a#17", 3, [events.SaltLen]byte{}, []byte("value"), nil)
		sealed <- err
	}()
	select {
	case err := <-sealed:
		t.Fatalf("sealed under a key that is not stored: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	stored.Store(&wrapped)
	if err := <-sealed; err != nil {
		t.Error(err)
	}
	failed := errors.New("the store has stopped")
	s.fetch = func(string) ([]byte, bool, error) { return nil, false, failed }
	if _, err := s.sealUnder("a#17", 3, [events.SaltLen]byte{}, nil, nil); !errors.Is(err, failed) {
		t.Errorf("after the store has stopped: %v", err)
	}
}

// A value that was read before an erasure is not kept in memory behind it.
func TestR83_AValueReadBeforeIsNotCachedAfter(t *testing.T) {
	var c valueCache
	age := c.age()
	c.clear()
	c.put(5, []byte("erased meanwhile"), age)
	if v := c.get(5); v != nil {
		t.Errorf("the cache has %q", v)
	}
	c.put(6, []byte("kept"), c.age())
	if v := c.get(6); string(v) != "kept" {
		t.Errorf("the cache has %q", v)
	}
}

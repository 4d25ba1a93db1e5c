package wire

import (
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"pgregory.net/rapid"
)

func TestTokens(t *testing.T) {
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, _ := key.PublicKey()
	now := time.Unix(1_796_000_000, 0)
	lookup := func(id string) (string, bool) { return public, id == "checker" }
	made, err := NewToken(key, "example.org/lab/1", "checker", now.Add(TokenLife))
	if err != nil {
		t.Fatal(err)
	}
	if id, err := CheckToken(made, "example.org/lab/1", now, lookup); err != nil || id != "checker" {
		t.Fatalf("%s: %q %v", made, id, err)
	}
	for name, ok := range map[string]bool{
		"later": checked(made, "example.org/lab/1", now.Add(TokenLife), lookup), "far earlier": checked(made, "example.org/lab/1", now.Add(-2*time.Minute), lookup),
		"another origin": checked(made, "example.org/lab/2", now, lookup), "nobody": checked(made, "example.org/lab/1", now, func(string) (string, bool) { return "", false }),
		"no key": checked(made, "example.org/lab/1", now, func(string) (string, bool) { return "U", true }),
	} {
		if ok {
			t.Errorf("%s: taken", name)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := []byte(made)
		i := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		b[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		if checked(string(b), "example.org/lab/1", now, lookup) {
			t.Fatalf("changed at %d, it is taken", i)
		}
		if checked(rapid.String().Draw(t, "any"), "example.org/lab/1", now, lookup) {
			t.Fatal("anything is taken")
		}
	})
	if _, err := NewToken(key, "a b", "checker", now); err == nil {
		t.Error("an origin that is none")
	}
}

func checked(token, origin string, now time.Time, lookup func(string) (string, bool)) bool {
	_, err := CheckToken(token, origin, now, lookup)
	return err == nil
}

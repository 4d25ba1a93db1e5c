package events

import "testing"

// Base64 has pluses, and one key in 64 ends in one.
func TestKeysThatEndInAPlusAreNotTheSame(t *testing.T) {
	a := "ledgerd.local/main/e64e283bcd774ab4/1/permit+1a801a8d+AfYD+yYx1nVCTuIPxUF9TKMfsjDFD9EoIPA7LsKHOdP+"
	b := "ledgerd.local/main/e64e283bcd774ab4/1+2b801a8d+AQYD+yYx1nVCTuIPxUF9TKMfsjDFD9EoIPA7LsKHOdP+"
	if KeyText(a) == KeyText(b) {
		t.Error("two keys count as one")
	}
	if KeyText(a) != KeyText("other+00000000+AfYD+yYx1nVCTuIPxUF9TKMfsjDFD9EoIPA7LsKHOdP+") {
		t.Error("one key under two names counts as two")
	}
}

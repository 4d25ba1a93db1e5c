package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// safeJSON is the same JSON with every character that does not print written
// as an escape: in a text of JSON such characters stand in strings only.
func safeJSON(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case unicode.IsPrint(r) && (r != utf8.RuneError || n > 1), r == '\n', r == '\t', r == '\r':
			out = append(out, b[:n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		b = b[n:]
	}
	return out
}

// yamlOf writes one JSON text as YAML: in the same order, numbers as written,
// every string quoted, nothing in it that a terminal obeys.
func yamlOf(b []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	out, err := appendYAML(nil, d, "")
	if err != nil {
		return nil, fmt.Errorf("show as YAML: %w", err)
	}
	return append(bytes.TrimPrefix(out, []byte("\n")), '\n'), nil
}

// appendYAML appends the next value of d: one that takes several lines begins
// with a line feed, any other with nothing.
func appendYAML(out []byte, d *json.Decoder, indent string) ([]byte, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	open, nested := token.(json.Delim)
	if !nested {
		return append(out, yamlScalar(token)...), nil
	}
	if !d.More() {
		_, err := d.Token()
		return append(out, map[json.Delim]string{'{': "{}", '[': "[]"}[open]...), err
	}
	for d.More() {
		out = append(append(out, '\n'), indent...)
		if open == '[' {
			out = append(out, '-')
		} else {
			name, err := d.Token()
			if err != nil {
				return nil, err
			}
			out = append(append(out, yamlKey(name.(string))...), ':')
		}
		value, err := appendYAML(nil, d, indent+"  ")
		if err != nil {
			return nil, err
		}
		if value[0] != '\n' {
			out = append(out, ' ')
		}
		out = append(out, value...)
	}
	_, err = d.Token()
	return out, err
}

func yamlScalar(token json.Token) string {
	switch v := token.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	case string:
		return yamlString(v)
	}
	return ""
}

// yamlString quotes a string with the escapes that YAML and Go share.
func yamlString(s string) string { return strconv.Quote(s) }

// yamlKey leaves a name plain where every reader of YAML takes it for a string.
func yamlKey(name string) string {
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" || slices.Contains(yamlWords, name) {
		return yamlString(name)
	}
	return name
}

// yamlWords are words that some YAML reader takes for something else.
var yamlWords = []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}

package sops

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// encrypted is a value as SOPS writes it (aes/cipher.go).
var encrypted = regexp.MustCompile(`^ENC\[AES256_GCM,data:([A-Za-z0-9+/=]*),iv:([A-Za-z0-9+/=]+),tag:([A-Za-z0-9+/=]+),type:([a-z]+)\]$`)

// value is a decrypted value: its bytes, and what stands for it in a manifest.
type value struct {
	// mac is what the message authentication code of the file is made of.
	mac []byte
	// yaml is on one line.
	yaml string
}

var errValue = errors.New("a value cannot be decrypted: it was changed, moved, or is not of this file")

// open decrypts a value that is at a path.
func open(text string, key []byte, path string) (string, string, error) {
	parts := encrypted.FindStringSubmatch(text)
	if parts == nil {
		return "", "", errValue
	}
	var raw [3][]byte
	for i := range raw {
		var err error
		if raw[i], err = base64.StdEncoding.DecodeString(parts[i+1]); err != nil {
			return "", "", errValue
		}
	}
	data, iv, tag := raw[0], raw[1], raw[2]
	block, err := aes.NewCipher(key)
	if err != nil {
		return "", "", errValue
	}
	gcm, err := cipher.NewGCMWithNonceSize(block, len(iv))
	if err != nil || len(tag) != gcm.Overhead() {
		return "", "", errValue
	}
	plain, err := gcm.Open(nil, iv, append(data, tag...), []byte(path))
	if err != nil {
		return "", "", errValue
	}
	return string(plain), parts[4], nil
}

// typed makes a value of what was decrypted, by its type.
func typed(plain, kind string) (value, error) {
	switch kind {
	case "str", "bytes":
		quoted, err := json.Marshal(plain) // which YAML reads as it is
		return value{[]byte(plain), string(quoted)}, err
	case "int":
		n, err := strconv.Atoi(plain)
		return value{[]byte(strconv.Itoa(n)), strconv.Itoa(n)}, err
	case "float":
		f, err := strconv.ParseFloat(plain, 64)
		text := strconv.FormatFloat(f, 'f', -1, 64)
		return value{[]byte(text), text}, err
	case "bool":
		b, err := strconv.ParseBool(plain)
		return value{boolBytes(b), strconv.FormatBool(b)}, err
	case "time":
		return value{[]byte(plain), strconv.Quote(plain)}, nil
	}
	return value{}, errors.New("a value has a type that is not known: " + kind)
}

// boolBytes is how the first SOPS, which was written in Python, has a bool.
func boolBytes(b bool) []byte {
	text := strconv.FormatBool(b)
	return []byte(strings.ToUpper(text[:1]) + text[1:])
}

// plainBytes is what the message authentication code has of a value that is not encrypted; nil for null.
func plainBytes(decoded any) ([]byte, error) {
	switch v := decoded.(type) {
	case nil:
		return nil, nil
	case string:
		return []byte(v), nil
	case int:
		return []byte(strconv.Itoa(v)), nil
	case int64:
		return []byte(strconv.FormatInt(v, 10)), nil
	case uint64:
		return []byte(strconv.FormatUint(v, 10)), nil
	case float64:
		return []byte(strconv.FormatFloat(v, 'f', -1, 64)), nil
	case bool:
		return boolBytes(v), nil
	case time.Time:
		return v.MarshalText()
	}
	return nil, errors.New("a value has a type that is not known")
}

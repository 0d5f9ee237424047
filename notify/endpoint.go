package notify

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// Endpoint says where a receiver is reached.
type Endpoint struct {
	// URLFile holds the address of the webhook.
	URLFile string
	// SecretFile holds what messages are signed with; empty for no signature.
	SecretFile string
}

// Endpoints are those that the controller was given, by the name of the receiver.
type Endpoints map[string]Endpoint

// Unmet says what the controller lacks for a Fleet's receivers, and what it was given that the Fleet has no use for.
func (e Endpoints) Unmet(fleet *schemas.Fleet) []string {
	var out []string
	named := map[string]bool{}
	for _, receiver := range fleet.Spec.Notifications {
		named[receiver.Name] = true
		endpoint, ok := e[receiver.Name]
		switch {
		case !ok || endpoint.URLFile == "":
			out = append(out, fmt.Sprintf("%q of spec.notifications is told nothing: start the controller with --notification-url-file %s=FILE", receiver.Name, receiver.Name))
		case endpoint.SecretFile != "" && receiver.Kind != schemas.ReceiverHTTP:
			out = append(out, fmt.Sprintf("what %q of spec.notifications is told is not signed: kind %s has no signature", receiver.Name, receiver.Kind))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e)) {
		if !named[name] {
			out = append(out, fmt.Sprintf("the controller has the address of %q, and the Fleet's spec.notifications has no such receiver", name))
		}
	}
	return out
}

// address reads the URL. What is wrong with it is told without it.
func (e Endpoint) address(read func(string) ([]byte, error)) (*url.URL, error) {
	content, err := readSecret(read, e.URLFile)
	if err != nil {
		return nil, fmt.Errorf("reading its URL: %w", err)
	}
	address, err := url.Parse(content)
	if err != nil || address.Host == "" || address.Scheme != "https" && address.Scheme != "http" {
		return nil, fmt.Errorf("%s holds no URL; write one line such as https://hooks.example.com/services/T0/B0/XX", e.URLFile)
	}
	return address, nil
}

// secret reads what messages are signed with; nil for no signature.
func (e Endpoint) secret(read func(string) ([]byte, error)) ([]byte, error) {
	if e.SecretFile == "" {
		return nil, nil
	}
	content, err := readSecret(read, e.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("reading its secret: %w", err)
	}
	return []byte(content), nil
}

// readSecret reads a file of one line.
func readSecret(read func(string) ([]byte, error), path string) (string, error) {
	content, err := read(path)
	if err != nil {
		var at *fs.PathError
		if errors.As(err, &at) {
			return "", fmt.Errorf("%s: %w", path, at.Err)
		}
		return "", err
	}
	text := strings.TrimSpace(string(content))
	if text == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return text, nil
}

package rest

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/gitvirt/gitvirt/forges"
)

// TokenFile is a Credential in a file. It is read for each request, which costs nothing beside one, so that a new token counts at once
// however it got there: Kubernetes exchanges a whole folder.
type TokenFile string

// Token implements Credential.
func (f TokenFile) Token(context.Context) (string, error) {
	content, err := os.ReadFile(string(f))
	if err != nil {
		return "", fmt.Errorf("%w: reading the token: %w", forges.ErrDenied, err)
	}
	token := strings.TrimSpace(string(content))
	switch {
	case token == "":
		return "", fmt.Errorf("%w: the token file %s is empty", forges.ErrDenied, string(f))
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%w: the token file %s holds more than a token; want one line", forges.ErrDenied, string(f))
	}
	return token, nil
}

// Refused implements Credential: another try is worth it when the file holds another token by now.
func (f TokenFile) Refused(ctx context.Context, token string) bool {
	now, err := f.Token(ctx)
	return err == nil && now != token
}

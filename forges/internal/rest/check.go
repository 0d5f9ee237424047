package rest

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/gitvirt/gitvirt/forges"
)

var (
	hash  = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)
	name  = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)
	login = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(\[bot\])?$`)
)

// IsLogin tells whether a text may be the name of an account. Others are asked nobody about: they become part of a path.
func IsLogin(text string) bool { return login.MatchString(text) && !strings.Contains(text, "..") }

// IsName tells whether a text may be the name of a repository.
func IsName(text string) bool { return name.MatchString(text) && text != "." && text != ".." }

// CheckCommit refuses what is no full hash of a commit.
func CheckCommit(commit string) error {
	if !hash.MatchString(commit) {
		return fmt.Errorf("%w: %q is no full hash of a commit", forges.ErrRefused, commit)
	}
	return nil
}

// CheckStatus refuses a status that no forge would take, and returns its description fit for all of them.
func CheckStatus(commit string, status forges.Status) (description string, err error) {
	if status.Context == "" {
		return "", fmt.Errorf("%w: a status without a context", forges.ErrRefused)
	}
	switch status.State {
	case forges.Pending, forges.Success, forges.Failure:
	default:
		return "", fmt.Errorf("%w: a status with the state %q", forges.ErrRefused, status.State)
	}
	return Cut(strings.Join(strings.Fields(status.Description), " "), forges.DescriptionLimit), CheckCommit(commit)
}

// CheckBody refuses a comment that is empty or longer than so many characters.
func CheckBody(body string, limit int) error {
	switch n := utf8.RuneCountInString(body); {
	case strings.TrimSpace(body) == "":
		return fmt.Errorf("%w: the comment is empty", forges.ErrRefused)
	case n > limit:
		return fmt.Errorf("%w: the comment has %d characters, and %d is the most", forges.ErrRefused, n, limit)
	}
	return nil
}

// CheckSecret compares what a webhook was sent with and what it should have been, in constant time. Nobody who has no secret is let in.
func CheckSecret(got, secret string) error {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(secret)) // of the same length, whatever was sent
	if secret == "" || subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return fmt.Errorf("%w: the webhook was not sent with the secret", forges.ErrDenied)
	}
	return nil
}

// CheckSignature compares a webhook's signature, HMAC-SHA256 in hexadecimal digits, in constant time.
func CheckSignature(signature string, body []byte, secret string) error {
	denied := fmt.Errorf("%w: the webhook was not signed with the secret", forges.ErrDenied)
	got, err := hex.DecodeString(signature)
	if err != nil || secret == "" {
		return denied
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	if !hmac.Equal(got, mac.Sum(nil)) {
		return denied
	}
	return nil
}

// CheckPullRequest finds an answer that is JSON and no pull request.
func CheckPullRequest(p forges.PullRequest) error {
	if p.Number <= 0 || !hash.MatchString(p.Head) || p.Base == "" || p.Updated.IsZero() {
		return errors.New("it answers with a pull request that has no number, head, base or time")
	}
	return nil
}

// CheckComment finds an answer that is JSON and no comment.
func CheckComment(c forges.Comment) error {
	if c.ID <= 0 || c.Created.IsZero() {
		return errors.New("it answers with a comment that has no number or time")
	}
	return nil
}

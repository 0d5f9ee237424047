package git

import (
	"errors"
	"fmt"
	"net/mail"

	"github.com/go-git/go-git/v5/config"
)

// ErrNoIdentity says that nobody has told git who they are.
var ErrNoIdentity = errors.New("git does not know who you are")

// Identity returns who makes commits here, as git finds it: GIT_AUTHOR_NAME and GIT_AUTHOR_EMAIL, else user.name and
// user.email of the user's or the system's configuration. Without both it is ErrNoIdentity.
func Identity(getenv func(string) string) (Author, error) {
	author := Author{Name: getenv("GIT_AUTHOR_NAME"), Email: getenv("GIT_AUTHOR_EMAIL")}
	for _, scope := range []config.Scope{config.GlobalScope, config.SystemScope} {
		if author.Name != "" && author.Email != "" {
			break
		}
		settings, err := config.LoadConfig(scope)
		if err != nil {
			return Author{}, fmt.Errorf("reading git's configuration: %w", err)
		}
		if author.Name == "" {
			author.Name = settings.User.Name
		}
		if author.Email == "" {
			author.Email = settings.User.Email
		}
	}
	if author.Name == "" || author.Email == "" {
		return Author{}, ErrNoIdentity
	}
	return author, nil
}

// ParseAuthor reads "Name <email>".
func ParseAuthor(text string) (Author, error) {
	address, err := mail.ParseAddress(text)
	if err != nil || address.Name == "" {
		return Author{}, fmt.Errorf("%q is not of the form \"Name <email>\"", text)
	}
	return Author{Name: address.Name, Email: address.Address}, nil
}

// String returns "Name <email>".
func (a Author) String() string { return a.Name + " <" + a.Email + ">" }

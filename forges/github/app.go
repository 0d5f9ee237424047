package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/bradleyfalzon/ghinstallation/v2"
	api "github.com/google/go-github/v89/github"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// renewBefore is how long before its end a token of an installation is exchanged for a new one. They are good for an hour.
const renewBefore = 5 * time.Minute

// appCredential exchanges an App's signature for tokens of its installation in one repository. It implements rest.Credential.
type appCredential struct {
	id          int64
	keyFile     string
	owner, repo string
	root        *url.URL
	// unsigned is the client below, which authenticates nothing itself.
	unsigned *http.Client
	clock    backoff.Clock

	// turn holds one value, and whoever takes it may use what is below. A mutex could not be given up when a context ends.
	turn         chan struct{}
	installation int64
	slug         string
	token        string
	expires      time.Time
}

func newAppCredential(app App, owner, repo string, root *url.URL, unsigned *http.Client, clock backoff.Clock) *appCredential {
	if clock == nil {
		clock = backoff.SystemClock{}
	}
	return &appCredential{
		id: app.ID, keyFile: app.PrivateKeyFile, owner: owner, repo: repo, root: root, unsigned: unsigned, clock: clock, turn: make(chan struct{}, 1),
	}
}

func (a *appCredential) lock(ctx context.Context) error {
	select {
	case a.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *appCredential) unlock() { <-a.turn }

// Token implements rest.Credential.
func (a *appCredential) Token(ctx context.Context) (string, error) {
	if err := a.lock(ctx); err != nil {
		return "", err
	}
	defer a.unlock()
	left := a.expires.Sub(a.clock.Now())
	if a.token != "" && left > renewBefore {
		return a.token, nil
	}
	if err := a.renew(ctx); err != nil {
		if a.token != "" && left > 0 {
			return a.token, nil // it is good for some minutes, and so may be the next try
		}
		return "", rest.Error(ctx, fmt.Sprintf("getting a token for GitHub App %d", a.id), err)
	}
	return a.token, nil
}

// Refused implements rest.Credential: the token may have been revoked, and a new one is asked for.
func (a *appCredential) Refused(ctx context.Context, token string) bool {
	if a.lock(ctx) != nil {
		return false
	}
	defer a.unlock()
	if a.token == token {
		a.token = ""
	}
	return true
}

// renew asks for a token that is good for the one repository.
func (a *appCredential) renew(ctx context.Context) error {
	client, err := a.signed()
	if err != nil {
		return err
	}
	for {
		found := a.installation == 0
		if found {
			if err := a.find(ctx, client); err != nil {
				return err
			}
		}
		// It may be asked for twice: the token of a lost answer is forgotten.
		token, _, err := client.Apps.CreateInstallationToken(rest.Idempotent(ctx), a.installation, &api.InstallationTokenOptions{Repositories: []string{a.repo}})
		if errors.Is(err, forges.ErrNotFound) && !found {
			a.installation = 0 // it was removed; there may be another
			continue
		}
		if err != nil {
			return err
		}
		if token.GetToken() == "" || token.GetExpiresAt().IsZero() {
			return errors.New("it answers without a token")
		}
		a.token, a.expires = token.GetToken(), token.GetExpiresAt().Time
		return nil
	}
}

// signed returns a client that authenticates as the App. The key is read each time, so that a new one counts at once.
func (a *appCredential) signed() (*api.Client, error) {
	key, err := os.ReadFile(a.keyFile)
	if err != nil {
		return nil, fmt.Errorf("%w: reading the App's private key: %w", forges.ErrDenied, err)
	}
	signer, err := ghinstallation.NewAppsTransport(a.unsigned.Transport, a.id, key)
	if err != nil {
		return nil, fmt.Errorf("%w: %s holds no RSA key in PEM, as GitHub hands them out", forges.ErrDenied, a.keyFile)
	}
	return newAPI(a.root, &http.Client{Transport: signer, CheckRedirect: a.unsigned.CheckRedirect})
}

// find looks for the installation of the App in the repository.
func (a *appCredential) find(ctx context.Context, client *api.Client) error {
	installation, _, err := client.Apps.GetRepositoryInstallation(ctx, a.owner, a.repo)
	switch {
	case errors.Is(err, forges.ErrNotFound):
		return fmt.Errorf("%w: the App is not installed for %s/%s; install it on its page, under \"Install App\"", forges.ErrDenied, a.owner, a.repo)
	case err != nil:
		return err
	case installation.GetID() == 0:
		return errors.New("it answers without the installation")
	}
	a.installation = installation.GetID()
	return nil
}

// login returns the account of the App.
func (a *appCredential) login(ctx context.Context) (string, error) {
	if err := a.lock(ctx); err != nil {
		return "", err
	}
	defer a.unlock()
	if a.slug == "" {
		client, err := a.signed()
		if err != nil {
			return "", err
		}
		app, _, err := client.Apps.Get(ctx, "")
		if err != nil {
			return "", err
		}
		if app.GetSlug() == "" {
			return "", errors.New("it answers without the App's name")
		}
		a.slug = app.GetSlug()
	}
	return a.slug + "[bot]", nil
}

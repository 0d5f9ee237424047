package open_test

import (
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/forges/open"
)

func TestFromGit(t *testing.T) {
	for _, test := range []struct{ kind, git, base, repository string }{
		{open.GitHub, "https://github.com/shop/fleet.git", "https://github.com", "shop/fleet"},
		{open.GitHub, "https://github.com/shop/fleet/", "https://github.com", "shop/fleet"},
		{open.GitHub, "https://ann:s3cret@github.com/shop/fleet", "https://github.com", "shop/fleet"},
		{open.GitHub, "git@github.com:shop/fleet.git", "https://github.com", "shop/fleet"},
		{open.GitHub, "github.com:shop/fleet", "https://github.com", "shop/fleet"},
		{open.GitHub, "ssh://git@ssh.github.com:443/shop/fleet.git", "https://github.com", "shop/fleet"},
		{open.Gitea, "https://gitea.example.com:3000/shop/fleet.git", "https://gitea.example.com:3000", "shop/fleet"},
		{open.Gitea, "https://example.com/git/shop/fleet.git", "https://example.com/git", "shop/fleet"},
		{open.Gitea, "ssh://git@gitea.example.com:2222/shop/fleet.git", "https://gitea.example.com", "shop/fleet"},
		{open.Forgejo, "forgejo@[2001:db8::1]:shop/fleet.git", "https://[2001:db8::1]", "shop/fleet"},
		{open.Forgejo, "ssh://git@[2001:db8::1]:2222/shop/fleet.git", "https://[2001:db8::1]", "shop/fleet"},
		{open.Gitea, "http://127.0.0.1:3000/shop/fleet", "http://127.0.0.1:3000", "shop/fleet"},
		{open.GitLab, "https://gitlab.com/shop/infra/fleet.git", "https://gitlab.com", "shop/infra/fleet"},
		{open.GitLab, "git@gitlab.example.com:shop/infra/fleet.git", "https://gitlab.example.com", "shop/infra/fleet"},
		{open.GitLab, "ssh://git@altssh.gitlab.com:443/shop/fleet.git", "https://gitlab.com", "shop/fleet"},
	} {
		base, repository, err := open.FromGit(test.kind, test.git)
		if err != nil || base != test.base || repository != test.repository {
			t.Errorf("%s: %s, %s, %v; want %s, %s", test.git, base, repository, err, test.base, test.repository)
		}
	}
	for _, git := range []string{"/srv/git/fleet.git", "file:///srv/git/shop/fleet.git", "git://example.com/shop/fleet", "https://github.com/fleet", "https://ann:s3cret@git hub.com/x/y", "", "fleet"} {
		if base, repository, err := open.FromGit(open.GitHub, git); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %s, %s, %v", git, base, repository, err)
		}
	}
}

func TestForge(t *testing.T) {
	for _, test := range []struct {
		name   string
		config open.Config
		want   string
	}{
		{"gitea by git", open.Config{Kind: "gitea", Git: "https://example.com/git/shop/fleet.git", TokenFile: "/token"}, "example.com/git/shop/fleet"},
		{"forgejo by name", open.Config{Kind: "Forgejo", URL: "https://codeberg.org", Repository: "shop/fleet", TokenFile: "/token"}, "codeberg.org/shop/fleet"},
		{"github, token", open.Config{Kind: "github", Git: "git@github.com:shop/fleet.git", TokenFile: "/token"}, "github.com/shop/fleet"},
		{"github, App", open.Config{Kind: "github", Git: "git@github.com:shop/fleet.git", AppID: 7, AppKeyFile: "/key"}, "github.com/shop/fleet"},
		{"gitlab below a path", open.Config{Kind: "gitlab", URL: "https://example.com/code", Git: "https://example.com/code/shop/infra/fleet.git", TokenFile: "/token"}, "example.com/code/shop/infra/fleet"},
		{"another port for ssh", open.Config{Kind: "gitlab", URL: "https://example.com:8443", Git: "ssh://git@example.com:22/shop/fleet.git", TokenFile: "/token"}, "example.com:8443/shop/fleet"},
		{"another repository", open.Config{Kind: "gitea", Repository: "shop/fleet", Git: "https://example.com/mirrors/fleet.git", TokenFile: "/token"}, "example.com/shop/fleet"},
	} {
		f, err := open.Forge(test.config)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		} else if f.Name() != test.want {
			t.Errorf("%s: %s, want %s", test.name, f.Name(), test.want)
		}
	}
	for _, test := range []struct {
		name   string
		config open.Config
		want   string
	}{
		{"bitbucket", open.Config{Kind: "bitbucket"}, "Bitbucket is not supported as a forge; leave the forge out"},
		{"azure", open.Config{Kind: "AzureDevOps"}, "Azure DevOps is not supported"},
		{"unknown", open.Config{Kind: "sourcehut"}, `"sourcehut"; want gitea, forgejo, github or gitlab`},
		{"none", open.Config{}, `is ""; want`},
		{"nowhere", open.Config{Kind: "gitea", TokenFile: "/token"}, "want the forge's URL and the repository"},
		{"a folder", open.Config{Kind: "gitea", Git: "/srv/git/fleet.git", TokenFile: "/token"}, "cannot be told"},
		{"no token", open.Config{Kind: "gitea", Git: "https://example.com/shop/fleet"}, "want a token file"},
		{"App of another forge", open.Config{Kind: "gitlab", AppID: 7}, "a GitHub App is for GitHub"},
		{"half an App", open.Config{Kind: "github", AppID: 7, Git: "https://github.com/shop/fleet"}, "wants its ID and the file"},
		{"plain http", open.Config{Kind: "gitea", Git: "http://example.com/shop/fleet", TokenFile: "/token"}, "a token would be readable"},
		{"groups", open.Config{Kind: "gitea", URL: "https://example.com", Repository: "a/b/c", TokenFile: "/token"}, "want OWNER/NAME"},
	} {
		if f, err := open.Forge(test.config); err == nil || f != nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, %v; want %q", test.name, f, err, test.want)
		}
	}
}

package main

import "testing"

func TestPlaceOnForge(t *testing.T) {
	for _, test := range []struct {
		remote, url, repository string
		wantURL, wantRepository string
	}{
		{remote: "https://github.com/shop/fleet.git", wantURL: "https://github.com", wantRepository: "shop/fleet"},
		{remote: "https://user:hush@git.example.com:3000/code/shop/fleet/", wantURL: "https://git.example.com:3000/code", wantRepository: "shop/fleet"},
		{remote: "ssh://git@git.example.com:2222/shop/fleet.git", wantURL: "https://git.example.com", wantRepository: "shop/fleet"},
		{remote: "git@git.example.com:shop/fleet.git", wantURL: "https://git.example.com", wantRepository: "shop/fleet"},
		{remote: "git@git.example.com:shop/fleet.git", url: "https://forge.example.com", wantURL: "https://forge.example.com", wantRepository: "shop/fleet"},
		{remote: "/srv/fleet.git", url: "https://forge.example.com", repository: "shop/fleet", wantURL: "https://forge.example.com", wantRepository: "shop/fleet"},
		{remote: "/srv/fleet.git"},
		{remote: "https://git.example.com/fleet.git"},
	} {
		f := forgeFlags{url: test.url, repository: test.repository}
		base, repository, err := f.place(test.remote)
		if base != test.wantURL || repository != test.wantRepository || (err != nil) != (test.wantURL == "") {
			t.Errorf("%s: %q, %q, %v", test.remote, base, repository, err)
		}
	}
}

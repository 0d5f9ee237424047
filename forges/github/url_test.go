package github

import (
	"net/url"
	"testing"
)

func TestAPIURL(t *testing.T) {
	for base, want := range map[string]string{
		"https://github.com":                   "https://api.github.com",
		"https://www.github.com":               "https://api.github.com",
		"https://api.github.com":               "https://api.github.com",
		"https://shop.ghe.com":                 "https://api.shop.ghe.com",
		"https://api.shop.ghe.com":             "https://api.shop.ghe.com",
		"https://github.example.com":           "https://github.example.com/api/v3",
		"https://github.example.com:8443/code": "https://github.example.com:8443/code/api/v3",
		"https://github.example.com/api/v3":    "https://github.example.com/api/v3",
	} {
		parsed, err := url.Parse(base)
		if err != nil {
			t.Fatal(err)
		}
		if got := apiURL(parsed).String(); got != want {
			t.Errorf("%s: %s, want %s", base, got, want)
		}
	}
}

package forgetest

import (
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"
)

// NewFront starts a server that hands requests on to another one, a real forge, so that they can be counted and made to fail.
func NewFront(tb testing.TB, target string, options ...Option) *Server {
	tb.Helper()
	to, err := url.Parse(target)
	if err != nil {
		tb.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	return newServer(tb, time.Second, func(_ *Server, mux *http.ServeMux) { mux.Handle("/", proxy) }, options)
}

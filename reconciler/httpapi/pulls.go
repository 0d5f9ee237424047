package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/gitvirt/gitvirt/previews"
)

// pullRequests answers questions about pull requests.
type pullRequests struct{ shown PullRequests }

func (p *pullRequests) list(w http.ResponseWriter, _ *http.Request) {
	out := Pulls{Pulls: []previews.Status{}, Problem: p.shown.Problem()}
	out.Pulls = slices.AppendSeq(out.Pulls, maps.Values(p.shown.Pulls()))
	slices.SortFunc(out.Pulls, func(a, b previews.Status) int { return cmp.Compare(a.Number, b.Number) })
	answer(w, http.StatusOK, out)
}

// plan shows all of a plan, as plain text: what is in it comes from others.
func (p *pullRequests) plan(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.Atoi(r.PathValue("number"))
	if err != nil {
		answer(w, http.StatusNotFound, Error{"want the number of a pull request"})
		return
	}
	text, err := p.shown.Full(r.Context(), number)
	switch {
	case errors.Is(err, previews.ErrNoPlan):
		answer(w, http.StatusNotFound, Error{fmt.Sprintf("pull request %d has no plan: it is not open, not to be planned, or not known yet", number)})
	case err != nil:
		answer(w, http.StatusServiceUnavailable, Error{err.Error()})
	default:
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, text) // the client went away
	}
}

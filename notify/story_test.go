package notify_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/notify"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

const machine = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web}
spec:
  runStrategy: Always
  template:
    spec:
      domain: {memory: {guest: 64Mi}, devices: {disks: [{name: init, disk: {bus: virtio}}]}}
      volumes:
      - name: init
        cloudInitNoCloud: {userData: "#!/bin/sh\necho top-secret-marker"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {key: top-secret-marker}
`

// TestStory: a controller that fails, is mended and loses git tells both receivers, and neither the user data nor the address of the one.
func TestStory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		repo := reconcilertest.NewRepository(map[string]string{
			"gitvirt.yaml": "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: demo}\nspec: {notifications: [{name: ops, kind: slack}, {name: audit, kind: http, filter: 'true'}, {name: night, kind: slack}]}\n",
			"web.yaml":     machine,
		})
		host, branch := reconcilertest.NewHost(), reconcilertest.NewBranch()
		web := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "web"}
		host.SetFault(web, func(plan.Step) error { return fmt.Errorf("%w: no space left in <pool>", apply.ErrRetry) })
		to := notify.Endpoints{"ops": {URLFile: "/slack"}, "audit": {URLFile: "/http", SecretFile: "/key"}}
		loop, err := reconciler.New(repo, host, reconciler.Config{
			Status: func(string) reconciler.StatusBranch { return branch }, Unmet: to.Unmet, Rand: func() float64 { return 0 },
		})
		if err != nil {
			t.Fatal(err)
		}
		server, all := &slack{}, strings.Builder{}
		config := configured(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "hooks.slack.test" {
				_, _ = io.Copy(&all, r.Body)
				return
			}
			server.ServeHTTP(w, r)
		}))
		config.Registerer = loop.Registry()
		n, err := notify.New(loop, to, config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 2)
		go func() { ended <- loop.Run(ctx) }()
		go func() { ended <- n.Run(ctx) }()
		time.Sleep(time.Minute)
		host.SetFault(web, nil)
		time.Sleep(time.Minute)
		repo.Fail(&sources.Error{Kind: sources.ErrUnreadable, Source: "fake", Op: "polling", Err: errors.New("connection refused")})
		time.Sleep(time.Minute)
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
		told := strings.Join(server.told(), "\n")
		for _, want := range []string{"Warning ApplyFailed default/web: ", "no space left in &lt;pool&gt;", "Warning PollFailed: "} {
			if !strings.Contains(told, want) {
				t.Errorf("not told of %q: %s", want, told)
			}
		}
		for _, want := range []string{`"reason":"Applied","kind":"VirtualMachine","namespace":"default","name":"web"`, `"reason":"RevisionFetched"`, `"reason":"StatusPublished"`} {
			if !strings.Contains(all.String(), want) {
				t.Errorf("not told of %q: %s", want, all.String())
			}
		}
		events := fmt.Sprint(loop.Events(0))
		if readme := branch.File("README.md"); !strings.Contains(readme, "start the controller with --notification-url-file night=FILE") {
			t.Errorf("the status is %s", readme)
		}
		for what, text := range map[string]string{"Slack": told, "HTTP": all.String(), "events": events, "status": branch.File("README.md")} {
			if strings.Contains(text, "top-secret-marker") || strings.Contains(text, "sesame") {
				t.Errorf("%s is told a secret: %s", what, text)
			}
		}
	})
}

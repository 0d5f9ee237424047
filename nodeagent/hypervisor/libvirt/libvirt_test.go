package libvirt

import (
	"context"
	"errors"
	"testing"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

func TestStateOf(t *testing.T) {
	for _, test := range []struct {
		why    string
		state  lv.DomainState
		reason int
		want   hypervisor.State
		stop   hypervisor.StopReason
	}{
		{"runs", lv.DOMAIN_RUNNING, int(lv.DOMAIN_RUNNING_BOOTED), hypervisor.StateRunning, ""},
		{"runs and waits for a device", lv.DOMAIN_BLOCKED, 0, hypervisor.StateRunning, ""},
		{"paused by hand", lv.DOMAIN_PAUSED, int(lv.DOMAIN_PAUSED_USER), hypervisor.StatePaused, ""},
		{"paused before its first instruction", lv.DOMAIN_PAUSED, int(lv.DOMAIN_PAUSED_STARTING_UP), hypervisor.StateStarting, ""},
		{"sleeps", lv.DOMAIN_PMSUSPENDED, 0, hypervisor.StatePMSuspended, ""},
		{"about to stop", lv.DOMAIN_SHUTDOWN, 0, hypervisor.StateShutdown, ""},
		{"panicked and kept", lv.DOMAIN_CRASHED, int(lv.DOMAIN_CRASHED_PANICKED), hypervisor.StateCrashed, hypervisor.StopCrashed},
		{"never started", lv.DOMAIN_SHUTOFF, int(lv.DOMAIN_SHUTOFF_UNKNOWN), hypervisor.StateShutoff, hypervisor.StopUnknown},
		{"shut down", lv.DOMAIN_SHUTOFF, int(lv.DOMAIN_SHUTOFF_SHUTDOWN), hypervisor.StateShutoff, hypervisor.StopShutdown},
		{"destroyed", lv.DOMAIN_SHUTOFF, int(lv.DOMAIN_SHUTOFF_DESTROYED), hypervisor.StateShutoff, hypervisor.StopDestroyed},
		{"crashed", lv.DOMAIN_SHUTOFF, int(lv.DOMAIN_SHUTOFF_CRASHED), hypervisor.StateShutoff, hypervisor.StopCrashed},
		{"given up by libvirtd", lv.DOMAIN_SHUTOFF, int(lv.DOMAIN_SHUTOFF_DAEMON), hypervisor.StateShutoff, hypervisor.StopCrashed},
		{"could not start", lv.DOMAIN_SHUTOFF, int(lv.DOMAIN_SHUTOFF_FAILED), hypervisor.StateShutoff, hypervisor.StopFailed},
		{"saved", lv.DOMAIN_SHUTOFF, int(lv.DOMAIN_SHUTOFF_SAVED), hypervisor.StateShutoff, hypervisor.StopSaved},
		{"migrated", lv.DOMAIN_SHUTOFF, int(lv.DOMAIN_SHUTOFF_MIGRATED), hypervisor.StateShutoff, hypervisor.StopMigrated},
		{"a reason of the future", lv.DOMAIN_SHUTOFF, 99, hypervisor.StateShutoff, hypervisor.StopUnknown},
	} {
		t.Run(test.why, func(t *testing.T) {
			if state, stop := stateOf(test.state, test.reason); state != test.want || stop != test.stop {
				t.Errorf("stateOf = %q, %q, want %q, %q", state, stop, test.want, test.stop)
			}
		})
	}
}

func TestClassify(t *testing.T) {
	missing := lv.Error{Code: lv.ERR_NO_DOMAIN, Message: "Domain not found"}
	err := classify(missing, true)
	if !errors.Is(err, hypervisor.ErrNotFound) || err.Error() != "no such domain: Domain not found" {
		t.Errorf("classify = %v, want it not found, without libvirt's numbers", err)
	}
	if !hasCode(err, lv.ERR_NO_DOMAIN) {
		t.Errorf("classify = %v, want libvirt's error in it", err)
	}
	if again := classify(err, true); !errors.Is(again, err) {
		t.Errorf("classify of a classified error = %v, want the same", again)
	}
	closed := lv.Error{Code: lv.ERR_INTERNAL_ERROR, Message: "client socket is closed"}
	if err := classify(closed, false); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("classify on a dead connection = %v, want it unavailable", err)
	}
	if err := classify(closed, true); errors.Is(err, hypervisor.ErrUnavailable) || err.Error() != closed.Message {
		t.Errorf("classify of an internal error = %v, want no kind", err)
	}
	if classify(nil, false) != nil {
		t.Error("classify of no error is an error")
	}
}

// TestAgentError: a guest counts as silent only when it was asked.
func TestAgentError(t *testing.T) {
	of := func(kind error, code lv.ErrorNumber) error {
		return &Error{Kind: kind, Cause: lv.Error{Code: code, Message: "said"}}
	}
	for _, test := range []struct {
		reason string
		err    error
		sent   bool
		want   error // nil for none of the kinds
	}{
		{"its time is over", context.DeadlineExceeded, true, hypervisor.ErrNoAgent},
		{"the time was over before it was asked", context.DeadlineExceeded, false, hypervisor.ErrUnavailable},
		{"the caller went away", context.Canceled, true, context.Canceled},
		{"libvirt says that it is silent", of(hypervisor.ErrNoAgent, lv.ERR_AGENT_UNRESPONSIVE), true, hypervisor.ErrNoAgent},
		{"libvirt did not get at the domain", of(nil, lv.ERR_OPERATION_TIMEOUT), true, hypervisor.ErrUnavailable},
		{"the agent refuses", of(nil, lv.ERR_INTERNAL_ERROR), true, nil},
	} {
		err := agentError(test.err, test.sent)
		if test.want != nil && !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.reason, err, test.want)
		}
		for _, kind := range []error{hypervisor.ErrNoAgent, hypervisor.ErrUnavailable} {
			if !errors.Is(test.want, kind) && errors.Is(err, kind) {
				t.Errorf("%s: %v", test.reason, err)
			}
		}
	}
}

func TestAgentConnected(t *testing.T) {
	channel := func(name, state string) string {
		return "<domain><devices><channel type='unix'><target type='virtio' name='" + name + "'" + state + "/></channel></devices></domain>"
	}
	for why, test := range map[string]struct {
		live string
		want bool
	}{
		"connected":           {channel("org.qemu.guest_agent.0", " state='connected'"), true},
		"disconnected":        {channel("org.qemu.guest_agent.0", " state='disconnected'"), false},
		"off":                 {channel("org.qemu.guest_agent.0", ""), false},
		"another channel":     {channel("com.redhat.spice.0", " state='connected'"), false},
		"no channel":          {"<domain/>", false},
		"not readable at all": {"<", false},
	} {
		t.Run(why, func(t *testing.T) {
			if got := agentConnected(test.live); got != test.want {
				t.Errorf("agentConnected = %t, want %t", got, test.want)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	if got := version(7002022); got != "7.2.22" {
		t.Errorf("version = %s, want 7.2.22", got)
	}
}

package nodeagent_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

// TestConsole: what is typed reaches the guest and what it says the caller, one caller at a time; a guest that talks faster than somebody
// listens is not stopped by that, and what is left out is counted.
func TestConsole(t *testing.T) {
	r := newRig(t, nil)
	in := vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}}
	open := func(request *api.ConsoleInput) (api.Agent_ConsoleClient, error) {
		t.Helper()
		stream, err := r.client.Console(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		return stream, err
	}
	address := "VirtualMachine/default/a"
	refused := func(request *api.ConsoleInput, want codes.Code) {
		t.Helper()
		if _, err := open(request); status.Code(err) != want {
			t.Errorf("%v: %v, want %s", request, err, want)
		}
	}
	refused(&api.ConsoleInput{Address: address}, codes.NotFound)
	refused(&api.ConsoleInput{Address: "a"}, codes.InvalidArgument)
	r.must(r.request(in, ""))
	refused(&api.ConsoleInput{Address: address}, codes.FailedPrecondition)
	r.must(r.request(in, "on"))
	r.must(r.request(vm{name: "b", change: in.change}, "on"))
	// Who may ask about one machine does not get at another by the name of its domain.
	refused(&api.ConsoleInput{Address: address, Domain: "default_b"}, codes.NotFound)
	if _, err := r.client.ReadStatistics(t.Context(), &api.ReadStatisticsRequest{Address: address, Domain: "default_b"}); status.Code(err) != codes.NotFound {
		t.Errorf("statistics of another: %v", err)
	}

	stream, err := open(&api.ConsoleInput{Address: address, Data: []byte("typed at once, ")})
	if err != nil {
		t.Fatal(err)
	}
	refused(&api.ConsoleInput{Address: address}, codes.AlreadyExists)
	if err := stream.Send(&api.ConsoleInput{Data: []byte("and later")}); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil { // which is no end of listening
		t.Fatal(err)
	}
	heard, lost := "", uint64(0)
	hear := func(until func() bool) {
		t.Helper()
		for !until() {
			said, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			heard, lost = heard+string(said.GetData()), lost+said.GetLost()
		}
	}
	hear(func() bool { return heard == "typed at once, and later" })
	const lines, line = 2000, 1 << 10
	for range lines {
		r.fake.GuestSays("default_a", strings.Repeat("x", line))
	}
	heard = ""
	hear(func() bool { return len(heard)+int(lost) == lines*line })
	r.fake.GuestPowersOff("default_a")
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the console of a guest that went off ends with %v", err)
	}
}

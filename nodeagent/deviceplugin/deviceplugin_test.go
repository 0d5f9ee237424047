package deviceplugin_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gitvirt/gitvirt/nodeagent/deviceplugin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kubelet is what plugins register with.
type kubelet struct {
	v1beta1.UnimplementedRegistrationServer
	dir        string
	registered chan *v1beta1.RegisterRequest
	server     *grpc.Server
	ended      chan struct{}
}

// startKubelet does what the kubelet does when it starts: it removes all sockets and makes its own.
func startKubelet(t *testing.T, dir string) *kubelet {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	if err != nil {
		t.Fatal(err)
	}
	for _, socket := range sockets {
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{dir: dir, registered: make(chan *v1beta1.RegisterRequest, 10), server: grpc.NewServer(), ended: make(chan struct{})}
	v1beta1.RegisterRegistrationServer(k.server, k)
	go func() {
		defer close(k.ended)
		_ = k.server.Serve(listener)
	}()
	t.Cleanup(k.stop)
	return k
}

func (k *kubelet) stop() {
	k.server.Stop()
	<-k.ended
}

func (k *kubelet) Register(_ context.Context, request *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	k.registered <- request
	return &v1beta1.Empty{}, nil
}

// plugin waits for a registration and connects with who registered.
func (k *kubelet) plugin(t *testing.T, resource string) v1beta1.DevicePluginClient {
	t.Helper()
	select {
	case request := <-k.registered:
		if request.GetResourceName() != resource || request.GetVersion() != "v1beta1" {
			t.Fatalf("registered: %v", request)
		}
		conn, err := grpc.NewClient("unix:"+filepath.Join(k.dir, request.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return v1beta1.NewDevicePluginClient(conn)
	case <-time.After(20 * time.Second):
		t.Fatal("nobody registers")
	}
	return nil
}

// watch returns the stream of a device, and a function that reads the health of the next list.
func watch(t *testing.T, plugin v1beta1.DevicePluginClient) func() string {
	t.Helper()
	stream, err := plugin.ListAndWatch(t.Context(), &v1beta1.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	return func() string {
		t.Helper()
		list, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		ids := map[string]bool{}
		health := ""
		for _, device := range list.GetDevices() {
			ids[device.GetID()] = true
			health = device.GetHealth()
		}
		if len(ids) != 1000 {
			t.Errorf("%d devices", len(ids))
		}
		return health
	}
}

// A device is offered while it is there, also to a kubelet that was restarted; what a container gets is the device.
func TestDevice(t *testing.T) {
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "tun")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&deviceplugin.Plugin{
			Dir: dir, Devices: []deviceplugin.Device{{Name: "tun", Path: path}, {Name: "kvm", Path: filepath.Join(dir, "absent")}},
			Logger: slog.New(slog.DiscardHandler), Interval: 5 * time.Millisecond,
		}).Run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	k := startKubelet(t, dir)
	if err := os.Symlink("/dev/null", path); err != nil { // a device that everybody has
		t.Fatal(err)
	}
	plugin := k.plugin(t, "devices.gitvirt.io/tun")
	health := watch(t, plugin)
	if now := health(); now != v1beta1.Healthy {
		t.Error(now)
	}
	got, err := plugin.Allocate(t.Context(), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{"tun7"}}}})
	if err != nil || len(got.GetContainerResponses()) != 1 {
		t.Fatal(got, err)
	}
	device := got.GetContainerResponses()[0].GetDevices()[0]
	if device.GetHostPath() != path || device.GetContainerPath() != path || device.GetPermissions() != "rw" {
		t.Error(device)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if now := health(); now != v1beta1.Unhealthy {
		t.Error(now)
	}
	if err := os.Symlink("/dev/null", path); err != nil {
		t.Fatal(err)
	}
	if now := health(); now != v1beta1.Healthy {
		t.Error(now)
	}
	k.stop()
	k = startKubelet(t, dir)
	if now := watch(t, k.plugin(t, "devices.gitvirt.io/tun"))(); now != v1beta1.Healthy {
		t.Error(now)
	}
}

// What is no device is not offered.
func TestNoDevice(t *testing.T) {
	dir := t.TempDir()
	k := startKubelet(t, dir)
	path := filepath.Join(dir, "kvm")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	(&deviceplugin.Plugin{Dir: dir, Devices: []deviceplugin.Device{{Name: "kvm", Path: path}}, Logger: slog.New(slog.DiscardHandler), Interval: time.Millisecond}).Run(ctx)
	if len(k.registered) > 0 {
		t.Error("a file was offered as a device")
	}
}

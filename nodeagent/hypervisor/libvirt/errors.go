package libvirt

import (
	"errors"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// Error is an error of libvirt with the kind that callers decide on. It unwraps to both.
type Error struct {
	// Kind is one of the errors of package hypervisor, or nil when none fits: try again later.
	Kind error
	// Cause is what libvirt reported.
	Cause error
}

// Error returns the kind and libvirt's own message, without its numbers.
func (e *Error) Error() string {
	message := e.Cause.Error()
	var cause lv.Error
	if errors.As(e.Cause, &cause) {
		message = cause.Message
	}
	if e.Kind == nil {
		return message
	}
	return e.Kind.Error() + ": " + message
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Kind == nil {
		return []error{e.Cause}
	}
	return []error{e.Kind, e.Cause}
}

// kinds maps libvirt's error numbers (virErrorNumber) to the errors that callers decide on. What is not here is nobody's
// fault for certain and worth another try.
var kinds = map[lv.ErrorNumber]error{
	lv.ERR_NO_DOMAIN: hypervisor.ErrNotFound,

	lv.ERR_XML_ERROR:          hypervisor.ErrInvalid,
	lv.ERR_XML_DETAIL:         hypervisor.ErrInvalid,
	lv.ERR_XML_INVALID_SCHEMA: hypervisor.ErrInvalid,
	lv.ERR_CONFIG_UNSUPPORTED: hypervisor.ErrInvalid,
	lv.ERR_OS_TYPE:            hypervisor.ErrInvalid,
	lv.ERR_NO_OS:              hypervisor.ErrInvalid,
	lv.ERR_NO_NAME:            hypervisor.ErrInvalid,
	lv.ERR_INVALID_MAC:        hypervisor.ErrInvalid,
	lv.ERR_PARSE_FAILED:       hypervisor.ErrInvalid,

	lv.ERR_DOM_EXIST: hypervisor.ErrConflict,

	lv.ERR_AGENT_UNRESPONSIVE: hypervisor.ErrNoAgent,
	lv.ERR_AGENT_UNSYNCED:     hypervisor.ErrNoAgent,

	lv.ERR_NO_CONNECT:       hypervisor.ErrUnavailable,
	lv.ERR_INVALID_CONN:     hypervisor.ErrUnavailable,
	lv.ERR_AUTH_FAILED:      hypervisor.ErrUnavailable,
	lv.ERR_AUTH_CANCELLED:   hypervisor.ErrUnavailable,
	lv.ERR_AUTH_UNAVAILABLE: hypervisor.ErrUnavailable,
}

// classify gives an error of a libvirt call its kind. Whatever a call on a dead connection reports (there are a dozen
// texts and four numbers for that) means that the daemon went away.
func classify(err error, alive bool) error {
	var classified *Error
	if err == nil || errors.As(err, &classified) {
		return err
	}
	if !alive {
		return &Error{Kind: hypervisor.ErrUnavailable, Cause: err}
	}
	var cause lv.Error
	if !errors.As(err, &cause) {
		return err
	}
	return &Error{Kind: kinds[cause.Code], Cause: err}
}

// hasCode reports whether libvirt gave one of these error numbers.
func hasCode(err error, codes ...lv.ErrorNumber) bool {
	var cause lv.Error
	if !errors.As(err, &cause) {
		return false
	}
	for _, code := range codes {
		if cause.Code == code {
			return true
		}
	}
	return false
}

// unsupported reports whether the driver does not know a function or a flag.
func unsupported(err error) bool {
	return hasCode(err, lv.ERR_NO_SUPPORT, lv.ERR_INVALID_ARG, lv.ERR_ARGUMENT_UNSUPPORTED, lv.ERR_OPERATION_UNSUPPORTED)
}

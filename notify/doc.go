// Package notify tells people and programs of a controller's events: those receivers that the Fleet names, of the events that their filters
// match. Addresses and secrets come from files of the controller, never from the Fleet, and are in no message, event or error.
//
// It stands beside the loop and never holds it up. One goroutine follows the events and one for each receiver sends: what happens while a
// message waits or is tried again is one message afterwards, and when nobody takes them the oldest events are dropped and counted. What was
// not sent when the process ends is not sent: what lives, and what waits, is in the status; a notification is only a hint to look.
package notify

package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Change is a difference between two catalogs of a service.
type Change struct {
	What string `json:"what"`
	// Breaks lists what the change breaks: handlers, producers or waiting events. Empty: nothing.
	Breaks []string `json:"breaks"`
}

// Diff compares two catalogs of a service. others are the catalogs of other services. With others, a change of a published event
// breaks only those handlers, in the other services and in this one, that know the changed part. Without others, it breaks "each
// consumer of TOPIC". Millrace's handlers read each mode of CloudEvents, so a change of the mode breaks none of them. It breaks "each
// consumer of TOPIC outside Millrace". The exception is off to binary, which leaves the payload as it is.
//
// A handler that accepts less breaks its producers. It also breaks waiting events: delayed events, retries and dead letters.
func Diff(before, after *Document, others ...*Document) []Change {
	d := differ{before: before.known(), after: after.known(), alone: len(others) == 0}
	for _, other := range append(others, after) {
		for _, k := range other.known() {
			if k.handler != "" {
				k.service = other.Info.Title
				d.handlers = append(d.handlers, k)
			}
		}
	}
	d.modes(before.modes(), after.modes())
	d.sends()
	d.receives()
	return d.changes
}

// known is one version of an event type in one operation.
type known struct {
	service, handler, topic, name, kind string // kind is the event type without its version
	fields                              map[string]field
}

// field is a value in a payload.
type field struct {
	kind     string
	required bool
	parent   string // the path of the surrounding value
}

// fits reports whether f has another kind than in, but every value of f is also a value of in.
func (f field) fits(in field) bool {
	wider := f.kind != in.kind && in.kind == "any" || f.kind == "integer" && in.kind == "number"
	return wider && (f.required || !in.required)
}

// known lists the document's event versions in a stable order.
func (d *Document) known() (all []known) {
	for _, name := range slices.Sorted(maps.Keys(d.Operations)) {
		o := d.Operations[name]
		for _, m := range d.MessagesOf(o) {
			k := known{handler: o.Handler, topic: d.ChannelOf(o).Address, name: m.Name, kind: m.Type, fields: map[string]field{}}
			d.flatten(m.Payload, "", field{required: true}, nil, k.fields)
			all = append(all, k)
		}
	}
	return all
}

// modes returns the mode of CloudEvents of each topic that the service publishes to.
func (d *Document) modes() map[string]string {
	all := map[string]string{}
	for _, o := range d.Operations {
		if o.Handler == "" {
			all[d.ChannelOf(o).Address] = cmp.Or(d.ChannelOf(o).Mode, off)
		}
	}
	return all
}

const off, binary = "off", "binary"

// flatten records each value in the schema by its path, such as "lines[].price". f is what is known about the value at path.
func (d *Document) flatten(schema json.RawMessage, path string, f field, within []string, fields map[string]field) {
	var s struct {
		Ref        string `json:"$ref"`
		Type       any
		Format     string
		Encoding   string `json:"contentEncoding"`
		Title      string
		Properties map[string]json.RawMessage
		Required   []string
		Items      json.RawMessage
		Additional json.RawMessage            `json:"additionalProperties"`
		Patterns   map[string]json.RawMessage `json:"patternProperties"` // of a map with numeric keys
	}
	if json.Unmarshal(schema, &s) != nil { // the schema is true or false
		f.kind = "any"
		fields[path] = f
		return
	}
	if s.Ref != "" {
		name := strings.TrimPrefix(s.Ref, components)
		if slices.Contains(within, name) {
			f.kind = name // it contains itself
			fields[path] = f
			return
		}
		d.flatten(d.Components.Schemas[name], path, f, append(slices.Clone(within), name), fields)
		return
	}
	kind, _ := s.Type.(string)
	f.kind = strings.TrimSpace(cmp.Or(kind, "any") + " " + s.Format + s.Encoding + s.Title)
	fields[path] = f
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		d.flatten(s.Properties[name], strings.TrimPrefix(path+"."+segment(name), "."), field{required: slices.Contains(s.Required, name), parent: path}, within, fields)
	}
	if s.Items != nil {
		d.flatten(s.Items, path+"[]", field{required: true, parent: path}, within, fields)
	}
	if strings.HasPrefix(string(s.Additional), "{") {
		d.flatten(s.Additional, path+"{}", field{required: true, parent: path}, within, fields)
	}
	for _, pattern := range slices.Sorted(maps.Keys(s.Patterns)) {
		d.flatten(s.Patterns[pattern], path+"{}", field{required: true, parent: path}, within, fields)
	}
}

type differ struct {
	before, after, handlers []known
	alone                   bool // there are no catalogs of other services
	changes                 []Change
}

func (d *differ) add(breaks []string, format string, args ...any) {
	d.changes = append(d.changes, Change{What: fmt.Sprintf(format, args...), Breaks: append([]string{}, breaks...)})
}

// modes compares the modes of CloudEvents of the topics that the service published to before, and still does.
func (d *differ) modes(before, after map[string]string) {
	for _, topic := range slices.Sorted(maps.Keys(before)) {
		was, is := before[topic], after[topic]
		if is == was || is == "" {
			continue
		}
		var breaks []string
		if was != off || is != binary {
			breaks = []string{"each consumer of " + topic + " outside Millrace"}
		}
		d.add(breaks, "CloudEvents, published to %s: the mode was %s and is %s", topic, was, is)
	}
}

// sends compares what the service publishes.
func (d *differ) sends() {
	for _, old := range d.before {
		if old.handler != "" {
			continue
		}
		now := find(d.after, "", old.topic, old.name)
		if now == nil {
			d.add(d.deserted(old), "%s is no longer published to %s", old.name, old.topic)
			continue
		}
		for _, path := range slices.Sorted(maps.Keys(old.fields)) {
			was := old.fields[path]
			is, there := now.fields[path]
			switch {
			case !there:
				if _, ok := now.fields[was.parent]; ok { // otherwise its parent was removed, which is reported
					d.add(d.consumers(old, path), "%s, published to %s: %s was removed", old.name, old.topic, shown(path))
				}
			case is.fits(was):
				d.add(nil, "%s, published to %s: %s was %s and is %s", old.name, old.topic, shown(path), was.kind, is.kind)
			case is.kind != was.kind:
				d.add(d.consumers(old, path), "%s, published to %s: %s was %s and is %s", old.name, old.topic, shown(path), was.kind, is.kind)
			case was.required && !is.required:
				d.add(d.consumers(old, path), "%s, published to %s: %s may be missing", old.name, old.topic, shown(path))
			}
		}
		for _, path := range slices.Sorted(maps.Keys(now.fields)) {
			if _, had := old.fields[path]; !had {
				d.add(nil, "%s, published to %s: %s was added", old.name, old.topic, shown(path))
			}
		}
	}
	for _, now := range d.after {
		if now.handler == "" && find(d.before, "", now.topic, now.name) == nil {
			d.add(d.ignorant(now), "%s is published to %s", now.name, now.topic)
		}
	}
}

// receives compares what the handlers accept.
func (d *differ) receives() {
	for _, old := range d.before {
		if old.handler == "" {
			continue
		}
		producers := []string{"each producer of " + old.topic, "events that wait for " + old.handler}
		now := find(d.after, old.handler, old.topic, old.name)
		if now != nil && now.name == anything {
			continue
		}
		if now == nil {
			d.add(producers, "handler %s no longer handles %s of %s", old.handler, old.name, old.topic)
			continue
		}
		for _, path := range slices.Sorted(maps.Keys(now.fields)) {
			was, had := old.fields[path]
			is := now.fields[path]
			_, inKnown := old.fields[is.parent] // otherwise it is part of something added, and present wherever that is
			switch {
			case had && was.fits(is):
				d.add(nil, "handler %s, %s of %s: %s was %s and is %s", old.handler, old.name, old.topic, shown(path), was.kind, is.kind)
			case had && is.kind != was.kind:
				d.add(producers, "handler %s, %s of %s: %s was %s and is %s", old.handler, old.name, old.topic, shown(path), was.kind, is.kind)
			case is.required && !was.required && inKnown && path != "":
				d.add(producers, "handler %s, %s of %s: %s is required now", old.handler, old.name, old.topic, shown(path))
			case !had:
				d.add(nil, "handler %s, %s of %s: %s was added", old.handler, old.name, old.topic, shown(path))
			}
		}
	}
	for _, now := range d.after {
		if now.handler != "" && find(d.before, now.handler, now.topic, now.name) == nil {
			d.add(nil, "handler %s handles %s of %s", now.handler, now.name, now.topic)
		}
	}
}

// consumers returns the handlers that know this field of a published event.
func (d *differ) consumers(k known, path string) []string {
	all := d.handlersOf(k, path)
	if d.alone {
		all = append(all, "each consumer of "+k.topic)
	}
	return all
}

func (d *differ) handlersOf(k known, path string) (all []string) {
	for _, h := range d.handlers {
		_, knows := h.fields[path]
		if h.topic == k.topic && (h.name == k.name && knows || h.name == anything) {
			all = append(all, h.service+"/"+h.handler)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// deserted returns the handlers of an event that is no longer published, except those that know another version that still is.
func (d *differ) deserted(old known) []string {
	all := d.consumers(old, "")
	for _, k := range d.after {
		if k.handler == "" && k.topic == old.topic && k.kind == old.kind {
			for _, informed := range d.handlersOf(k, "") {
				all = slices.DeleteFunc(all, func(name string) bool { return name == informed })
			}
		}
	}
	return all
}

// ignorant returns the handlers of a topic that do not know a new event. A topic that is new has no other consumers.
func (d *differ) ignorant(k known) (all []string) {
	knows := map[string]bool{}
	for _, h := range d.handlers {
		if h.topic == k.topic {
			name := h.service + "/" + h.handler
			knows[name] = knows[name] || h.name == k.name || h.name == anything
		}
	}
	for _, name := range slices.Sorted(maps.Keys(knows)) {
		if !knows[name] {
			all = append(all, name)
		}
	}
	published := slices.ContainsFunc(d.before, func(old known) bool { return old.handler == "" && old.topic == k.topic })
	if d.alone && published {
		all = append(all, "each consumer of "+k.topic)
	}
	return all
}

// anything is the name of the message of a handler that accepts all types.
const anything = "any"

func find(all []known, handler, topic, name string) *known {
	for i, k := range all {
		if k.handler == handler && k.topic == topic && (k.name == name || handler != "" && k.name == anything) {
			return &all[i]
		}
	}
	return nil
}

// segment returns a field's name for a path. A name that would be ambiguous is quoted.
func segment(name string) string {
	if name == "" || strings.ContainsAny(name, `.[]{}"`) {
		return strconv.Quote(name)
	}
	return name
}

func shown(path string) string {
	if path == "" {
		return "the payload"
	}
	return path
}

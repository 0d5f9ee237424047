package schemas

// policyRules are for a Fleet's policy, whose Go types carry no descriptions.
func policyRules() map[fieldKey]fieldRule {
	rules := map[fieldKey]fieldRule{
		of[Policy]("apply"):          {doc: "What each consequence for a guest needs before it is carried out: automatic (nothing), window (an open window, or an approval), approval (gitvirt approve), never (it is only shown)."},
		of[Policy]("windows"):        {doc: "When steps may be carried out that wait for a window, and when no step may."},
		of[Policy]("powerSchedules"): {doc: "When machines are on and off."},
		of[Policy]("budgets"):        {doc: "How many machines may be interrupted or removed."},
		of[Policy]("removalGrace"):   {doc: "How long the domain of a removed machine is kept, shut down, before it is destroyed: 168h. Without it the domain is destroyed as soon as that may happen."},
		of[Policy]("rules"):          {doc: "The team's own rules."},
		of[Policy]("rollout"):        {doc: "The pace of an apply."},

		of[Window]("name"):     {required: true, doc: "What plans call it."},
		of[Window]("selector"): {doc: "The machines that it is for; all when it is left out."},
		of[Window]("schedule"): {required: true, doc: "When it opens, as cron has it: minute, hour, day of the month, month, day of the week, such as \"0 2 * * 6\"."},
		of[Window]("duration"): {required: true, doc: "How long it stays open, such as 2h."},
		of[Window]("timeZone"): {fallback: "UTC", doc: "The zone of the schedule, such as Europe/Berlin."},
		of[Window]("action"):   {values: []string{string(WindowAllow), string(WindowDeny)}, fallback: string(WindowAllow), doc: "allow lets steps be carried out that wait for a window; deny lets no step be carried out, whatever allows it."},

		of[PowerSchedule]("name"):     {required: true, doc: "What plans call it."},
		of[PowerSchedule]("selector"): {doc: "The machines that it is for; all when it is left out."},
		of[PowerSchedule]("start"):    {required: true, doc: "When the machines are switched on, as cron has it, such as \"0 7 * * 1-5\"."},
		of[PowerSchedule]("stop"):     {required: true, doc: "When they are shut down."},
		of[PowerSchedule]("timeZone"): {fallback: "UTC", doc: "The zone of both, such as Europe/Berlin."},

		of[Budget]("name"):               {required: true, doc: "What plans call it."},
		of[Budget]("selector"):           {doc: "The machines that it is for; all when it is left out."},
		of[Budget]("destroyPerRevision"): {doc: "How many machines one revision may destroy, replace or retire: a number, or a percentage of the machines."},
		of[Budget]("restartPerRevision"): {doc: "How many machines one revision may interrupt: a number, or a percentage of the machines."},
		of[Budget]("restartPerHost"):     {doc: "How many machines of one host may be interrupted at a time: a number, or a percentage of the machines."},

		of[Rule]("name"):       {required: true, doc: "What plans call it."},
		of[Rule]("expression"): {required: true, doc: "What must be true, in CEL (https://cel.dev). object is the machine as git has it, or as it was applied last when git has it no longer: kind, metadata (name, namespace, labels, annotations) and spec. before is what was applied last, or null. step is what would happen: action, reason, consequence, power, live, changes and drift (path, before, after, consequence), dataAtRisk, keeps, downtimeSeconds."},
		of[Rule]("message"):    {required: true, doc: "What is wrong when it is not true, for whoever reads the plan."},
		of[Rule]("action"):     {values: []string{string(RuleBlock), string(RuleApproval), string(RuleWarn)}, fallback: string(RuleBlock), doc: "What happens to a step for which it is not true: block, approval (it waits for one) or warn."},

		of[Rollout]("parallel"):     {doc: "How many steps are carried out at a time; 0 leaves it to the controller."},
		of[Rollout]("canary"):       {doc: "How many of a revision's steps have to be ready before the others begin: a number or a percentage."},
		of[Rollout]("onFailure"):    {values: []string{string(FailureContinue), string(FailureStop)}, fallback: string(FailureContinue), doc: "Whether anything new begins after a step has failed."},
		of[Rollout]("readyTimeout"): {fallback: "5m", doc: "How long a guest may take to become ready."},

		of[Selector]("namespaces"): {doc: "The namespaces of the machines; all when it is left out."},
	}
	values := []string{string(GateAutomatic), string(GateWindow), string(GateApproval), string(GateNever)}
	about := map[string]string{
		"create": "Making a machine.", "live": "Changes that the guest does not notice, or gets without an interruption.",
		"next-boot": "Changes that wait in the configuration until somebody boots the guest.", "power": "Starting and shutting down.",
		"migrate": "Moving a guest to another host.", "restart": "Power cycles.", "replace": "Making a domain anew with its disks kept.",
		"destroy": "Retiring and destroying the domains of removed machines.", "data": "Whatever destroys the data of a disk.",
	}
	var gates Gates
	for _, gate := range gates.each() {
		rules[of[Gates](gate.name)] = fieldRule{values: values, fallback: string(gate.fallback), doc: about[gate.name]}
	}
	return rules
}

package schemas

// sourceRules are for the sources of a Fleet, whose Go types carry no descriptions.
func sourceRules() map[fieldKey]fieldRule {
	var rights []string
	for _, right := range sourceRights() {
		rights = append(rights, string(right))
	}
	return map[fieldKey]fieldRule{
		of[FleetSpec]("sources"):      {doc: "Other repositories whose manifests count, each with what they may ask for; whatever is not said here is refused, object by object."},
		of[FleetSource]("name"):       {required: true, doc: "What the source is called in messages and records."},
		of[FleetSource]("git"):        {required: true, doc: "Where its manifests are."},
		of[FleetSource]("namespaces"): {required: true, doc: "The namespaces that its objects may be in. A namespace that several sources have is shared: each may use the Secrets and claims of the others there."},
		of[FleetSource]("hostPaths"):  {doc: "Files and folders of hosts that its machines may use, each with everything below it, such as /srv/images/team-a: for hostDisk, and images that are files (oci-archive). Without any it may use none."},
		of[FleetSource]("networks"):   {doc: "Networks that its interfaces may join besides the pod network, as NAMESPACE/NAME, or NAME for one of the machine's own namespace. Without any it is the pod network alone."},
		of[FleetSource]("quota"):      {doc: "What its machines may have together; without one there is no bound."},
		of[FleetSource]("allow"):      {values: rights, doc: "What its machines may take from others: dedicatedCPUs (dedicatedCpuPlacement), hugePages (memory.hugepages), priorityClasses (priorityClassName), tolerations, nodePorts (Services of the types NodePort and LoadBalancer)."},
		of[FleetSource]("trust"):      {doc: "Whose commits of this repository are applied."},
		of[FleetSourceGit]("url"):     {required: true, doc: "The address of the repository, without credentials: the controller has those from files."},
		of[FleetSourceGit]("branch"):  {doc: "The branch that counts; the one that the repository names itself when it is left out."},
		of[FleetSourceGit]("path"):    {doc: "The folder of the manifests; the whole repository when it is left out."},
		of[FleetQuota]("vms"):         {least: 1, doc: "How many machines, members of sets included."},
		of[FleetQuota]("cpus"):        {least: 1, doc: "How many virtual CPUs, as many as the guests may come to have (maxSockets)."},
		of[FleetQuota]("memory"):      {doc: "How much memory, as much as the guests may come to have (maxGuest), such as 64Gi."},
		of[FleetQuota]("storage"):     {doc: "How much disk space: of claims, DataVolumes, empty disks and hostDisks that may have to be made, such as 2Ti."},
	}
}

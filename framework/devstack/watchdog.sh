# Runs a service for a process that may die at any moment, and leaves nothing of it behind.
#
# Arguments: FOLDER SECONDS, then pairs of SIGNAL COMMAND, each COMMAND quoted for this shell. The commands run one after
# another; the last is the service. Standard input is a pipe whose write end only our parent holds. At its end, which
# the kernel brings about however the parent dies, the running command gets SIGNAL, after SECONDS SIGKILL. A line on
# the pipe kills the command at once. When it is gone, by that or by itself, FOLDER is removed, and this shell exits with
# the command's status.
folder=$1 seconds=$2
shift 2
unset MILLRACE_WATCHDOG

# A shell gives commands in the background /dev/null to read, so the pipe moves to 3.
exec 3<&0 </dev/null

guard() {
	eval "exec $2" 3<&- &
	command=$!
	{
		while read -r _; do kill -s KILL "$command"; done
		trap '' TERM
		# Repeated, because a command ignores SIGINT until it has set a handler: the shell starts background commands so.
		tries=$((seconds * 20))
		while kill -s "$1" "$command" && [ "$tries" -gt 0 ]; do
			sleep 0.05
			tries=$((tries - 1))
		done
		kill -s KILL "$command"
	} <&3 2>/dev/null &
	reader=$!

	# This shell outlives signals. Set only now, for a child loses the signals that come before it has dropped a trap
	# of its parent; and not ignored, for a JVM that inherits that ignores them too.
	trap : HUP INT TERM
	while :; do
		wait "$command"
		status=$?
		kill -0 "$command" 2>/dev/null || break # otherwise a trap interrupted the wait
	done
	kill -s TERM "$reader" 2>/dev/null # it reads still, unless it has seen the end of the pipe; then it ends by itself
	wait "$reader" 2>/dev/null
	trap - HUP INT TERM
	return "$status"
}

while [ $# -gt 0 ]; do
	guard "$1" "$2" || break
	shift 2
done

# A killed service's own children may write for another moment.
rm -rf "$folder" 2>/dev/null || { sleep 0.5; rm -rf "$folder"; }
exit "$status"

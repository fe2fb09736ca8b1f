# Runs a service for a process that may die at any moment, and leaves nothing of it behind.
#
# Arguments: FOLDER SECONDS, then pairs of SIGNAL COMMAND, each COMMAND quoted for this shell. The commands run one after
# another; the last is the service. Standard input is a pipe whose write end only our parent holds. At its end, which
# the kernel brings about however the parent dies, the running command gets SIGNAL, after SECONDS SIGKILL. A line on
# the pipe kills the command at once. When it is gone, by that or by itself, FOLDER is removed, and this shell exits with
# the command's status.
#
# The line "crash" kills the command and its children, as a failure of the machine would, the line "terminate" sends it
# SIGTERM, and after SECONDS SIGKILL. Both keep FOLDER, with a file named "crashed" in it; the next line runs the command
# again.
folder=$1 seconds=$2
shift 2
unset MILLRACE_WATCHDOG

# A shell gives commands in the background /dev/null to read, so the pipe moves to 3.
exec 3<&0 </dev/null

# crash runs in the reader. The command is stopped first: it would see its children die and start others. It ends last,
# when none of its children runs any more: PostgreSQL does not start again while one is attached to the shared memory.
crash() {
	trap '' TERM
	kill -s STOP "$command"
	tries=$((seconds * 50))
	while alive=$(children) && [ -n "$alive" ] && [ "$tries" -gt 0 ]; do
		for child in $alive; do kill -s KILL "$child"; done
		sleep 0.02
		tries=$((tries - 1))
	done
	kill -s KILL "$command"
	exit "$crashed"
}
crashed=99 # the reader's exit status

# children lists those of the command that run. One that is dead stays a zombie while the command is stopped.
children() {
	ps -A -o pid=,ppid=,stat= | while read -r child parent state; do
		case $parent,$state in
		"$command",Z*) ;;
		"$command",*) echo "$child" ;;
		esac
	done
}

# again waits, after a crash, for the line that runs the command once more; the end of the pipe fails it.
again() {
	[ "$reader_status" = "$crashed" ] || return 1
	trap : HUP INT TERM
	: >"$folder/crashed"
	read -r _ <&3 || return 1
	rm "$folder/crashed"
	trap - HUP INT TERM
}

# end sends SIGNAL to the command until it is gone, because it ignores SIGINT until it has set a handler: the shell starts
# background commands so.
end() {
	trap '' TERM
	tries=$((seconds * 20))
	while kill -s "$1" "$command" && [ "$tries" -gt 0 ]; do
		sleep 0.05
		tries=$((tries - 1))
	done
	kill -s KILL "$command"
}

guard() {
	eval "exec $2" 3<&- &
	command=$!
	{
		while read -r line; do
			case $line in
			crash) crash ;;
			terminate)
				end TERM
				exit "$crashed"
				;;
			esac
			kill -s KILL "$command"
		done
		end "$1"
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
	reader_status=$?
	trap - HUP INT TERM
	[ "$reader_status" != "$crashed" ] && return "$status"
}

while [ $# -gt 0 ]; do
	if guard "$1" "$2"; then
		shift 2
	elif ! again; then
		break
	fi
done

# A killed service's own children may write for another moment.
rm -rf "$folder" 2>/dev/null || { sleep 0.5; rm -rf "$folder"; }
exit "$status"

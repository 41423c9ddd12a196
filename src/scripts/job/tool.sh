# Stores standard input as the file py-spy of a job. Appended to job/directory.sh. Variables: jobs_dir, id.
umask 022
enter "$id" && put py-spy

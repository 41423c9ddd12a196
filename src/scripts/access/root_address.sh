LC_ALL=C; export LC_ALL; a=${SSH_CONNECTION:-}; a=${a% *}; a=${a##* }; l=$(id -u):$(id -g)

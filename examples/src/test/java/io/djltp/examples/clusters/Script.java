package io.djltp.examples.clusters;

import io.djltp.examples.ForkedTp;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * A script of {@code examples/clusters} that runs the tp command of this build, each process of
 * which writes down its number.
 */
final class Script {

    private static final String QUOTE = "'";

    /** What the command does first; the file is there while it is held. */
    private static final String HEAD =
            """
            #!/bin/sh
            while [ "$WORLD_SIZE" = 1 ] && [ -e '%s' ]; do sleep 0.1; done
            echo $$ of $WORLD_SIZE >> '%s'
            """;

    private final Path folder;
    private final Map<String, String> variables = new HashMap<>();

    /**
     * Makes the command.
     *
     * @param folder an empty folder for it
     */
    Script(Path folder) throws IOException {
        this.folder = folder;
        String java =
                ForkedTp.command().stream()
                        .map(word -> QUOTE + word + QUOTE)
                        .collect(Collectors.joining(" "));
        Path tp = Files.createFile(folder.resolve("tp"));
        String head = HEAD.formatted(held(), pids());
        Files.writeString(tp, head + "exec " + java + " \"$@\"\n");
        Files.setPosixFilePermissions(tp, PosixFilePermissions.fromString("rwxr-xr-x"));
        variables.put("TP", tp.toString());
    }

    /** Sets an environment variable of the script. */
    Script with(String name, String value) {
        variables.put(name, value);
        return this;
    }

    /** Starts it; words before its name start it themselves. */
    ForkedTp start(String name, String arguments, String... before) throws IOException {
        List<String> command = new ArrayList<>(List.of(before));
        command.add(Path.of("clusters", name).toAbsolutePath().toString());
        command.addAll(List.of(arguments.split(" ")));
        Files.deleteIfExists(pids());
        return ForkedTp.script(command, variables);
    }

    /** Lets no process of torchrun that is alone begin. */
    Script hold() throws IOException {
        Files.createFile(held());
        return this;
    }

    /** Ends the {@link #hold}. */
    void release() throws IOException {
        Files.delete(held());
    }

    /** Ends the process that was started last, as the system does when memory is short. */
    void kill() throws IOException {
        List<String> all = Files.readAllLines(pids());
        String last = all.get(all.size() - 1).split(" ")[0];
        // by this process: until another one has started, a short job may be over
        if (!ProcessHandle.of(Long.parseLong(last))
                .map(ProcessHandle::destroyForcibly)
                .orElse(false)) {
            throw new IllegalStateException("there is no process " + last);
        }
    }

    /** Returns of how many processes those that have begun were, as torchrun says. */
    List<String> worlds() throws IOException {
        return Files.readAllLines(pids()).stream().map(line -> line.split(" of ")[1]).toList();
    }

    private Path held() {
        return folder.resolve("held");
    }

    private Path pids() {
        return folder.resolve("pids");
    }
}

package io.djltp.examples;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.torch.NativeAllocator;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** One run of the tp command in this process, with what it printed. */
public final class TpRun {

    static {
        NativeAllocator.keepFreedArrays(); // as in a process of the command
    }

    private final int status;
    private final String output;

    private TpRun(int status, String output) {
        this.status = status;
        this.output = output;
    }

    /**
     * Runs the command.
     *
     * @param args the arguments
     * @return the run
     */
    public static TpRun of(String... args) {
        PrintStream out = System.out;
        PrintStream err = System.err;
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream both = new PrintStream(bytes, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        try {
            int status = Tp.execute(args);
            return new TpRun(status, bytes.toString(StandardCharsets.UTF_8));
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
    }

    /**
     * Reads a file that {@code --json} wrote.
     *
     * @param file the file
     * @return its object
     * @throws IOException if it cannot be read
     */
    public static JsonObject json(Path file) throws IOException {
        return JsonParser.parseString(Files.readString(file)).getAsJsonObject();
    }

    /**
     * Returns the exit status.
     *
     * @return the exit status
     */
    public int status() {
        return status;
    }

    /**
     * Returns what the run printed.
     *
     * @return standard output and error together
     */
    public String output() {
        return output;
    }
}

package io.djltp.examples;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.testing.TestFolder;
import io.djltp.torch.NativeAllocator;

import org.testng.Assert;

import picocli.CommandLine;

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
    private JsonElement figures; // or null

    private TpRun(int status, String output) {
        this.status = status;
        this.output = output;
    }

    /**
     * Runs the command with the option {@code --json}. It must succeed.
     *
     * @param line the arguments with a space between each two
     * @return the run
     * @throws IOException if the file that it wrote cannot be read
     */
    public static TpRun withJson(String line) throws IOException {
        Path json = Files.createTempFile("tp", ".json");
        try {
            TpRun run = line(line + " --json " + json);
            run.assertPrints(0);
            run.figures = JsonParser.parseString(Files.readString(json));
            return run;
        } finally {
            Files.delete(json);
        }
    }

    /**
     * Trains with the options {@code --json} and {@code --out}, of which nothing is kept.
     *
     * @param line the arguments with a space between each two
     * @return the run
     * @throws IOException if the file that it wrote cannot be read
     */
    public static TpRun training(String line) throws IOException {
        Path out = TestFolder.create();
        return withJson(line + " --out " + out);
    }

    /**
     * Returns what {@link #withJson} wrote.
     *
     * @return the figures
     */
    public JsonElement figures() {
        return figures;
    }

    /**
     * Returns the losses that {@link #withJson} wrote.
     *
     * @return the loss of each step
     */
    public double[] losses() {
        return figures.getAsJsonObject().getAsJsonArray("loss").asList().stream()
                .mapToDouble(JsonElement::getAsDouble)
                .toArray();
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

    /** Saves a small language model of 5 heads in a folder. */
    public static void languageModel(Path folder, String options) {
        String sizes = "lm --layers 2 --width 20 --heads 5 --kv-heads 5 --characters 5 ";
        line(sizes + options + " --save " + folder).assertPrints(0);
    }

    /**
     * Runs the command.
     *
     * @param line the arguments with a space between each two
     * @return the run
     */
    public static TpRun line(String line) {
        return of(line.split(" "));
    }

    /**
     * Checks how the run ended, and what it printed.
     *
     * @param expected the exit status; with 2 there is no stack trace
     * @param texts what is part of the output
     */
    public void assertPrints(int expected, String... texts) {
        Assert.assertEquals(status, expected, output);
        for (String text : texts) {
            Assert.assertTrue(output.contains(text), text + " in: " + output);
        }
        if (expected == CommandLine.ExitCode.USAGE) {
            Assert.assertFalse(output.contains("\tat "), output);
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

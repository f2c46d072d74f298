package io.djltp.testing;

import org.testng.Assert;
import org.testng.SkipException;

import java.io.IOException;
import java.lang.ProcessBuilder.Redirect;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** PyTorch 1.13 or newer for Python, {@code -Ddjltp.python=PYTHON} or {@code /usr/bin/python3}. */
public final class PyTorch {

    private static final Map<String, Boolean> FOUND = new ConcurrentHashMap<>();

    private PyTorch() {}

    /**
     * Runs a script.
     *
     * @param script its place in src/test/resources
     * @param lines what it reads
     * @return the lines that it prints
     * @throws SkipException if there is no PyTorch
     */
    public static List<String> run(String script, List<String> lines)
            throws IOException, InterruptedException {
        return run("torch", script, lines);
    }

    /**
     * Runs a script that needs another module of Python.
     *
     * @param module the module
     * @param script its place in src/test/resources
     * @param lines what it reads
     * @return the lines that it prints
     * @throws SkipException if there is no such module
     */
    public static List<String> run(String module, String script, List<String> lines)
            throws IOException, InterruptedException {
        String python = System.getProperty("djltp.python", "/usr/bin/python3");
        if (!FOUND.containsKey(module)) { // to import it takes as long as a script
            FOUND.put(module, has(python, module));
        }
        if (!FOUND.get(module)) {
            throw new SkipException(
                    "There is no %s for %s: install it, or set -Ddjltp.python"
                            .formatted(module, python));
        }
        Path in = Files.createTempFile("cases", "");
        Path out = Files.createTempFile("results", "");
        try {
            Files.write(in, lines);
            Path file = Path.of(System.getProperty("basedir", "."), "src/test/resources", script);
            ProcessBuilder builder = new ProcessBuilder(python, file.toString());
            builder.redirectError(Redirect.INHERIT).redirectInput(in.toFile());
            Assert.assertEquals(builder.redirectOutput(out.toFile()).start().waitFor(), 0, script);
            return Files.readAllLines(out);
        } finally {
            Files.delete(in);
            Files.delete(out);
        }
    }

    private static boolean has(String python, String module) throws InterruptedException {
        ProcessBuilder check = new ProcessBuilder(python, "-c", "import " + module);
        try {
            return check.redirectError(Redirect.DISCARD).start().waitFor() == 0;
        } catch (IOException e) {
            return false; // there is no such program
        }
    }
}

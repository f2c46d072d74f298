package io.djltp.report;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** A file of events is one that TensorBoard reads. */
public class EventFileTest extends TestFolder {

    @BeforeMethod
    public void write() throws IOException {
        try (EventFile file = new EventFile(folder)) {
            file.add("loss/training", 1, 2.5);
            file.add("loss/training", 300, -0.125);
            file.add("evaluation/héld out", 1L << 40, 1e-3);
        }
    }

    private Path file() throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.findFirst().orElseThrow();
        }
    }

    /** The bytes of a record, counted out by hand from the formats' descriptions. */
    @Test
    public void recordsHaveTheirLengthAndChecksums() throws IOException {
        ByteBuffer bytes =
                ByteBuffer.wrap(Files.readAllBytes(file())).order(ByteOrder.LITTLE_ENDIAN);
        Assert.assertTrue(file().getFileName().toString().startsWith("events.out.tfevents."));
        Assert.assertEquals(bytes.getLong(), 24); // 9 of the time, 2 + 13 of the version
        // masked_crc32c(bytes([24, 0, 0, 0, 0, 0, 0, 0])) of TensorBoard 2.21
        Assert.assertEquals(bytes.getInt(), 0x224b7fa3);
        Assert.assertEquals(bytes.get(), 0x09);
        double seconds = bytes.getDouble();
        Assert.assertEquals(seconds, System.currentTimeMillis() / 1e3, 60);
        byte[] version = new byte[13];
        Assert.assertEquals(bytes.getShort(), (short) 0x0d1a);
        bytes.get(version);
        Assert.assertEquals(new String(version, StandardCharsets.US_ASCII), "brain.Event:2");
    }

    /** TensorBoard's own reader, where Python has it: {@code pip install tensorboard}. */
    @Test(timeOut = 120_000)
    public void tensorBoardReadsIt() throws Exception {
        String script =
                "import sys, struct\n"
                        + "from tensorboard.backend.event_processing import event_file_loader as l\n"
                        + "for e in l.LegacyEventFileLoader(sys.argv[1]).Load():\n"
                        + "    for v in e.summary.value:\n"
                        + "        print(v.tag, e.step, v.simple_value)\n";
        Path output = Files.createTempFile("events", ".txt");
        try {
            Process python =
                    new ProcessBuilder("python3", "-c", script, file().toString())
                            .redirectOutput(output.toFile())
                            .redirectError(ProcessBuilder.Redirect.DISCARD)
                            .start();
            Assert.assertTrue(python.waitFor(100, TimeUnit.SECONDS));
            if (python.exitValue() != 0) {
                throw new SkipException(
                        "There is no TensorBoard for Python: pip install tensorboard");
            }
            Assert.assertEquals(
                    Files.readString(output),
                    "loss/training 1 2.5\n"
                            + "loss/training 300 -0.125\n"
                            + "evaluation/héld out 1099511627776 0.0010000000474974513\n");
        } catch (IOException e) {
            throw new SkipException("There is no TensorBoard for Python: pip install tensorboard");
        } finally {
            Files.delete(output);
        }
    }
}

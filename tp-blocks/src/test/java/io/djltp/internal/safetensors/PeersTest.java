package io.djltp.internal.safetensors;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/**
 * Files that are exchanged with other people's implementations of the format: equal names, types,
 * shapes and bits, both ways.
 *
 * <p>The file in the resources was written by Hugging Face's crate safetensors 0.6.2, with {@code
 * serialize_to_file(tensors, Some({"format": "pt"}), path)}, from the tensors below. Files written
 * here are read by the Python package (Debian 13 has it as python3-safetensors) and by the npm
 * package safetensors 0.0.1, where they are installed: see .ci/install-test-tools.
 */
public class PeersTest {

    private record Expected(DataType type, Shape shape, String bits) {}

    private static final Map<String, Expected> TENSORS = new LinkedHashMap<>();

    static {
        TENSORS.put(
                "block.0/weight", // 1.5, -2.25, 3e-30, infinity, 0.1, -0
                new Expected(
                        DataType.FLOAT32,
                        new Shape(2, 3),
                        "0000c03f000010c09063730e0000807fcdcccc3d00000080"));
        TENSORS.put("pi", new Expected(DataType.FLOAT64, new Shape(), "182d4454fb210940"));
        TENSORS.put(
                "half \"quoted\" größe", // 1, -2, 65504
                new Expected(DataType.FLOAT16, new Shape(3), "003c00c0ff7b"));
        TENSORS.put(
                "long",
                new Expected(
                        DataType.INT64,
                        new Shape(3, 1),
                        "0000000000000080ffffffffffffffffffffffffffffff7f"));
        TENSORS.put("int", new Expected(DataType.INT32, new Shape(1, 2), "07000000f8ffffff"));
        TENSORS.put("byte", new Expected(DataType.INT8, new Shape(3), "807f00"));
        TENSORS.put("flags", new Expected(DataType.BOOLEAN, new Shape(2, 2), "01000101"));
        TENSORS.put("none", new Expected(DataType.FLOAT32, new Shape(0, 4), ""));
    }

    private final Path folder = TestFolder.create();

    @Test
    public void testAFileOfHuggingFacesLibrary() throws IOException {
        Path path = resource("hugging-face-0.6.2.safetensors");
        try (SafetensorsFile file = SafetensorsFile.open(path);
                NDManager manager = NDManager.newBaseManager()) {
            Assert.assertEquals(file.getMetadata(), Map.of("format", "pt"));
            Assert.assertEquals(file.getTensors().keySet(), TENSORS.keySet());
            for (Map.Entry<String, Expected> each : TENSORS.entrySet()) {
                NDArray array = file.read(each.getKey(), manager);
                Assert.assertEquals(array.getDataType(), each.getValue().type());
                Assert.assertEquals(array.getShape(), each.getValue().shape());
                ByteBuffer bits = array.toByteBuffer();
                byte[] bytes = new byte[bits.remaining()];
                bits.get(bytes);
                Assert.assertEquals(
                        HexFormat.of().formatHex(bytes), each.getValue().bits(), each.getKey());
            }
        }
    }

    private Path write(String name, boolean metadata) throws IOException {
        Path path = folder.resolve(name);
        SafetensorsWriter.Builder builder = SafetensorsWriter.builder();
        TENSORS.forEach((key, each) -> builder.addTensor(key, each.type(), each.shape()));
        if (metadata) {
            builder.optMetadata("format", "pt");
        }
        try (FileChannel out =
                        FileChannel.open(
                                path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
                SafetensorsWriter writer = builder.build(out)) {
            for (Expected each : TENSORS.values()) {
                writer.write(ByteBuffer.wrap(HexFormat.of().parseHex(each.bits())));
            }
            writer.finish();
        }
        return path;
    }

    @Test
    public void testHuggingFacesPythonPackageReadsWhatIsWrittenHere() throws Exception {
        if (run(List.of("python3", "-c", "import safetensors.numpy")) == null) {
            throw new SkipException("There is no safetensors for Python: pip install safetensors");
        }
        Path script = resource("read.py");
        Path file = write("python.safetensors", true);
        assertReadBy(List.of("python3", script.toString(), file.toString()));
    }

    /** The package takes metadata for a tensor: files of it are written without. */
    @Test
    public void testTheNpmPackageReadsWhatIsWrittenHere() throws Exception {
        Path module =
                Path.of(
                                System.getProperty("basedir", "."),
                                "..",
                                ".ci/npm/node_modules/safetensors")
                        .toAbsolutePath()
                        .normalize();
        if (!Files.exists(module) || run(List.of("node", "--version")) == null) {
            throw new SkipException(
                    "There is no safetensors for node: npm install, see .ci/install-test-tools");
        }
        Path script = resource("read.js");
        Path file = write("node.safetensors", false);
        assertReadBy(List.of("node", script.toString(), module.toString(), file.toString()));
    }

    private Path resource(String name) throws IOException {
        Path path = folder.resolve(name);
        try (var in = PeersTest.class.getResourceAsStream("/safetensors/" + name)) {
            Files.copy(in, path);
        }
        return path;
    }

    /** Returns what a program prints, or {@code null} if there is none or it fails. */
    private static String run(List<String> command) throws Exception {
        Process process;
        try {
            process = new ProcessBuilder(command).redirectErrorStream(true).start();
        } catch (IOException e) {
            return null;
        }
        byte[] output = process.getInputStream().readAllBytes();
        Assert.assertTrue(process.waitFor(60, TimeUnit.SECONDS));
        return process.exitValue() == 0 ? new String(output, StandardCharsets.UTF_8) : null;
    }

    /** Compares what a program prints: a line a tensor, with name, shape and bits. */
    private static void assertReadBy(List<String> command) throws Exception {
        String output = run(command);
        Assert.assertNotNull(output, command + " failed");
        Map<String, String> expected = new TreeMap<>();
        for (Map.Entry<String, Expected> each : TENSORS.entrySet()) {
            String shape =
                    Arrays.stream(each.getValue().shape().getShape())
                            .mapToObj(Long::toString)
                            .collect(Collectors.joining(","));
            expected.put(each.getKey(), shape + "\t" + each.getValue().bits());
        }
        Map<String, String> read = new TreeMap<>();
        for (String line : output.split("\n")) {
            String[] words = line.split("\t", 2);
            read.put(words[0], words[1]);
        }
        Assert.assertEquals(read, expected);
    }
}

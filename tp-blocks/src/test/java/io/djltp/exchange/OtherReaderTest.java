package io.djltp.exchange;

import ai.djl.Model;
import ai.djl.ndarray.types.DataType;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import java.util.zip.CRC32;

/**
 * What is written here is read by the safetensors of Hugging Face, with the same shapes and bytes.
 * Needs a Python that has it, {@code -Ddjltp.python=PYTHON}, or {@code python3} on the path;
 * without one it is skipped. (The other way round is {@link PretrainedWeightsTest}.)
 */
public class OtherReaderTest {

    private static final String SCRIPT =
            """
            import glob, sys, zlib
            from safetensors import safe_open
            for file in glob.glob(sys.argv[1] + "/*.safetensors"):
                with safe_open(file, "pt") as tensors:
                    assert tensors.metadata() == {"format": "pt"}
                    for name in tensors.keys():
                        tensor = tensors.get_tensor(name)
                        numbers = tensor.double().numpy().astype("<f8").tobytes()
                        print(name, str(list(tensor.shape)).replace(" ", ""), zlib.crc32(numbers))
            """;

    @Test(timeOut = 120_000)
    public void huggingFaceReadsTheFiles() throws Exception {
        String python = System.getProperty("djltp.python", "python3");
        if (!hasSafetensors(python)) {
            throw new SkipException(
                    "There is no safetensors with PyTorch for Python: pip install torch safetensors");
        }
        for (DataType type : new DataType[] {DataType.FLOAT32, DataType.BFLOAT16}) {
            Path folder = Files.createTempDirectory("exported");
            Map<String, String> expected = new TreeMap<>();
            try (Model model = Model.newInstance("llama")) {
                model.setBlock(SmallModels.llama(true));
                model.getBlock()
                        .initialize(model.getNDManager(), DataType.FLOAT32, SmallModels.INPUT);
                WeightExport.builder()
                        .setMapping(SmallModels.LLAMA)
                        .optDataType(type)
                        .optFileBytes(9000)
                        .build()
                        .write(model.getBlock(), folder);
            }
            try (WeightFiles files = WeightFiles.open(folder)) {
                for (String name : files.names()) {
                    expected.put(name, describe(files, name));
                }
            }
            Map<String, String> read = new TreeMap<>();
            for (String line : run(python, "-c", SCRIPT, folder.toString())) {
                String[] words = line.split(" ", 2);
                read.put(words[0], words[1]);
            }
            Assert.assertEquals(read, expected);
            try (Stream<Path> files = Files.list(folder)) {
                for (Path file : files.toList()) {
                    Files.delete(file);
                }
            }
            Files.delete(folder);
        }
    }

    private static String describe(WeightFiles files, String name) throws IOException {
        boolean half = files.get(name).type().equals("BF16");
        ByteBuffer bytes =
                ByteBuffer.allocate((int) files.get(name).bytes()).order(ByteOrder.LITTLE_ENDIAN);
        files.fileOf(name).read(files.get(name), 0, bytes);
        bytes.flip();
        int count = bytes.remaining() / (half ? 2 : 4);
        ByteBuffer doubles = ByteBuffer.allocate(8 * count).order(ByteOrder.LITTLE_ENDIAN);
        while (bytes.hasRemaining()) {
            int bits = half ? bytes.getShort() << 16 : bytes.getInt();
            doubles.putDouble(Float.intBitsToFloat(bits));
        }
        CRC32 crc = new CRC32();
        crc.update(doubles.array());
        List<String> lengths = new ArrayList<>();
        for (long length : files.get(name).shape().getShape()) {
            lengths.add(Long.toString(length));
        }
        return "[" + String.join(",", lengths) + "] " + crc.getValue();
    }

    private static boolean hasSafetensors(String python) throws InterruptedException {
        try {
            run(python, "-c", "import torch, safetensors");
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    private static List<String> run(String... command) throws IOException, InterruptedException {
        Process process =
                new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        if (!process.waitFor(60, TimeUnit.SECONDS) || process.exitValue() != 0) {
            process.destroyForcibly();
            throw new IOException(String.join(" ", command) + " failed: " + output);
        }
        return output.lines().toList();
    }
}

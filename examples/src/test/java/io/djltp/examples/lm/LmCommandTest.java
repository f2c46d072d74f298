package io.djltp.examples.lm;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonElement;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.TpRun;
import io.djltp.llm.Generation;
import io.djltp.llm.GenerationOptions;
import io.djltp.llm.Generator;
import io.djltp.llm.LanguageModel;
import io.djltp.llm.RandomFolder;
import io.djltp.testing.TestFolder;
import io.djltp.torch.Precision;

import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** The language model learns the same on any ranks, with the collectives that it should have. */
public class LmCommandTest {

    private static final double TOLERANCE = 1e-4;
    private static final int STEPS = 6;

    /** Two layers, seven heads, tokens and a vocabulary that no number of ranks divides. */
    private static final String SMALL =
            "lm --layers 2 --width 28 --heads 7 --kv-heads 7 --context 13 --vocabulary 301 --batch 4"
                    + " --lr 0.01 --steps "
                    + STEPS
                    + " ";

    @Test(timeOut = 240_000)
    public void theSameLossesOnAnyRanks() throws IOException {
        TpRun one = run("--tp 1");
        assertEquals(text(one, "collectives"), counts("", "", ""));
        double[] expected = one.losses();
        assertEquals(expected.length, STEPS);
        assertTrue(expected[STEPS - 1] < expected[0]);
        // the embedding, two a layer, and the loss; two a layer, and the head
        // the update: the norm of all gradients, and where norms see cut tokens their gradients
        String forward = "\"all-gather\":1,\"all-reduce\":%d";
        String tensor = counts(forward.formatted(5), "\"all-reduce\":5", "\"all-reduce\":1");
        String mesh = counts(forward.formatted(6), "\"all-reduce\":5", "\"all-reduce\":2");
        String tokens = "\"all-gather\":%d,%s\"reduce-scatter\":5";
        String backward = tokens.formatted(5, "");
        String cut = counts(tokens.formatted(6, ""), backward, "\"all-reduce\":2");
        // over the axis data also the mean of the losses, and the gradients
        String forwardOfMesh = tokens.formatted(6, "\"all-reduce\":1,");
        String cutMesh = counts(forwardOfMesh, backward, "\"all-reduce\":3");
        String[][] runs = {
            {"--tp 3", tensor},
            {"--mesh 2x2", mesh},
            {"--tp 4 --sequence-parallel", cut},
            {"--mesh 2x2 --sequence-parallel", cutMesh},
        };
        for (String[] each : runs) {
            TpRun run = run(each[0]);
            assertEquals(text(run, "collectives"), each[1], each[0]);
            double[] losses = run.losses();
            for (int i = 0; i < STEPS; i++) {
                double bound = TOLERANCE * expected[i];
                assertEquals(losses[i], expected[i], bound, each[0] + ", step " + i);
            }
            double heldOut = Double.parseDouble(text(one, "held_out_loss"));
            assertEquals(
                    Double.parseDouble(text(run, "held_out_loss")), heldOut, TOLERANCE * heldOut);
        }
    }

    /** What it saves is a folder that others read, and writes the same. */
    @Test(timeOut = 240_000)
    public void savesAFolderOfHuggingFace() throws Exception {
        Path folder = TestFolder.create();
        Path saved = folder.resolve("saved");
        TpRun run =
                TpRun.withJson(SMALL + "--tp 2 --temperature 0 --characters 12 --save " + saved);
        run.assertPrints(0, "Saved for tp generate " + saved);
        TpRun.line("lm --save " + saved)
                .assertPrints(2, "has a model, its model.safetensors: choose");
        try (LanguageModel model = LanguageModel.load(saved);
                NDManager manager = NDManager.newBaseManager()) {
            assertEquals(model.getConfig().getVocabularySize(), 301);
            assertEquals(model.getConfig().getMaxPositions(), 13);
            assertEquals(model.getGenerationOptions().getStopTokens(), List.of(0));
            model.readWhole();
            long[] ids = model.getTokenizer().encode("", true, false).getIds();
            String text = "";
            while (text.length() < 12) {
                long[] seen = Arrays.copyOfRange(ids, Math.max(0, ids.length - 13), ids.length);
                NDArray input = manager.create(seen, new Shape(1, seen.length));
                NDArray logits = RandomFolder.outputs(model, input);
                ids = Arrays.copyOf(ids, ids.length + 1);
                ids[ids.length - 1] = logits.get(0, -1).argMax().getLong();
                text =
                        model.getTokenizer()
                                .decode(Arrays.copyOfRange(ids, 1, ids.length), false)
                                .replace("<|endoftext|>", "\n");
            }
            assertEquals(text.substring(0, 12), text(run, "sample"));
        }
    }

    /** llama.cpp reads what it saves, and generates the same. */
    @Test(timeOut = 480_000)
    public void llamaCppGeneratesTheSame() throws Exception {
        Path folder = TestFolder.create();
        String prompt = "She said";
        String options = "--layers 2 --width 64 --heads 4 --kv-heads 2 --context 400 --steps 100";

        TpRun.line("lm " + options + " --batch 4 --lr 0.01 --characters 5 --save " + folder)
                .assertPrints(0);
        List<String> command = ForkedTp.command();
        int last = command.size() - 1;
        String tests = "../tp-blocks/llm/target/test-classes" + File.pathSeparator;
        command.set(last - 1, tests + command.get(last - 1));
        command.set(last, "io.djltp.llm.LlamaCpp");
        command.addAll(List.of(folder.toString(), prompt));
        ForkedTp.Result peer;
        try (ForkedTp process = ForkedTp.script(command, Map.of())) {
            peer = process.await();
        }
        if (peer.err().contains(SkipException.class.getName())) {
            throw new SkipException(peer.err());
        }
        assertEquals(peer.status(), 0, peer.err());
        String[] expected = peer.out().split("\\R");
        try (Generator generator = Generator.builder().setPath(folder).build()) {
            int[] ids = generator.encodeChat(prompt);
            assertEquals(Arrays.toString(ids), expected[0]);
            Generation text =
                    generator.generateIds(
                            List.of(ids), GenerationOptions.builder().optMaxTokens(300).build());
            text.finish();
            assertEquals(Arrays.toString(text.getIds(0)), expected[1]);
        }
    }

    /**
     * A loss is off by the rounding of factors, sqrt(k) 2^-8 of a product's terms, through four
     * layers forward and six updates: below 2^-6 of it here.
     */
    @Test(timeOut = 240_000)
    public void bfloat16StaysNearFloat32() throws IOException {
        if (Precision.BFLOAT16.whyNot(Device.cpu()).isPresent()) {
            throw new SkipException("This machine has no bfloat16");
        }
        double[] expected = run("--tp 1").losses();
        for (String ranks : List.of("--tp 1", "--tp 3")) {
            double[] losses = run(ranks + " --precision bfloat16").losses();
            assertFalse(Arrays.equals(losses, expected), ranks);
            for (int i = 0; i < STEPS; i++) {
                double bound = expected[i] / 64;
                assertEquals(losses[i], expected[i], bound, ranks + ", step " + i);
            }
        }
    }

    private static String counts(String forward, String backward, String update) {
        return "{\"forward\":{%s},\"backward\":{%s},\"update\":{%s}}"
                .formatted(forward, backward, update);
    }

    private static TpRun run(String options) throws IOException {
        Path page = Files.createTempFile("lm", ".html");
        try {
            TpRun run = TpRun.withJson(SMALL + options + " --characters 20 --report " + page);
            run.assertPrints(0, "It writes:");
            assertEquals(text(run, "sample").length(), 20);
            assertTrue(Files.readString(page).contains("\"name\":\"held-out loss\""));
            assertTrue(Files.readString(page).contains("\"running\":false,\"early\":false"));
            return run;
        } finally {
            Files.delete(page);
        }
    }

    private static String text(TpRun run, String figure) {
        JsonElement value = run.figures().getAsJsonObject().get(figure);
        return value.isJsonPrimitive() ? value.getAsString() : value.toString();
    }
}

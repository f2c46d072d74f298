package io.djltp.examples.finetune;

import ai.djl.util.Utils;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.examples.ForkedTp;
import io.djltp.examples.JobVariables;
import io.djltp.examples.TpRun;
import io.djltp.llm.LanguageModel;
import io.djltp.llm.RandomFolder;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/** The command fine-tunes a model that {@code tp lm} has trained, on ranks and processes. */
public class FinetuneCommandTest {

    private static final String[] ANIMALS = {
        "cat", "dog", "bird", "fish", "horse", "cow", "sheep", "mouse", "frog", "goose"
    };

    private final Path folder = TestFolder.create();
    private Path model;
    private Path data;

    @BeforeClass
    public void train() throws IOException {
        model = folder.resolve("model");
        TpRun.languageModel(model, "--context 48 --batch 4 --vocabulary 300 --steps 5");
        List<String> lines = new ArrayList<>();
        for (String animal : ANIMALS) {
            lines.add(
                    "{\"prompt\": \"The %s\", \"completion\": \" sleeps in the garden.\"}"
                            .formatted(animal));
        }
        data = Files.write(folder.resolve("animals.jsonl"), lines);
    }

    private String command(String options) {
        return "finetune %s --data %s --lr 0.01 --batch 4 %s".formatted(model, data, options);
    }

    /** Epochs of three batches, of which the last is filled up, on ranks and in other batches. */
    @Test(timeOut = 240_000)
    public void lossesAreTheSameOnAnyRanks() throws IOException {
        double[] expected = null;
        JsonObject first = null;
        for (String options :
                List.of(
                        "--tp 1 --batch 10",
                        "--tp 3 --batch 10 --dtype bfloat16",
                        "--mesh 2x2 --batch 10 --bucket",
                        "--tp 2 --batch 5 --accumulate 2 --pack")) {
            Path saved = folder.resolve("saved");
            TpRun run =
                    TpRun.withJson(
                            command("--epochs 4 --eval " + data + " --save " + saved + " ")
                                            .replace("--batch 4 ", "")
                                    + options);
            run.assertPrints(0, "after step 0: evaluation loss", "Saved " + saved);
            JsonObject figures = run.figures().getAsJsonObject();
            double[] losses = run.losses();
            if (expected == null) {
                expected = losses;
                first = figures;
            }
            Assert.assertEquals(losses.length, 4, options);
            for (int i = 0; i < 4; i++) {
                Assert.assertEquals(losses[i], expected[i], 1e-5 * expected[i], options);
            }
            double loss = first.get("evaluation_loss").getAsDouble();
            Assert.assertEquals(figures.get("evaluation_loss").getAsDouble(), loss, 1e-5 * loss);
            Assert.assertTrue(loss < expected[3], options);
            TpRun.line("generate " + saved + " -p The --tokens 3 --tp 2").assertPrints(0);
            Utils.deleteQuietly(saved);
        }
    }

    @Test(timeOut = 120_000)
    public void lossOfOtherTextFalls() throws IOException {
        Path saved = folder.resolve("better");
        TpRun run =
                TpRun.withJson(
                        command("--epochs 6 --eval-share 0.2 --schedule linear --save " + saved));
        run.assertPrints(0, "8 texts to train on", "2 texts for evaluations");
        double[] losses = evaluations(run);
        Assert.assertEquals(losses.length, 7, run.output());
        Assert.assertTrue(losses[6] < 0.9 * losses[0], run.output());
    }

    /** Returns the losses of all evaluations. */
    private static double[] evaluations(TpRun run) {
        return Pattern.compile("evaluation loss ([0-9.]+)")
                .matcher(run.output())
                .results()
                .mapToDouble(found -> Double.parseDouble(found.group(1)))
                .toArray();
    }

    /** Adapters are trained, saved as PEFT does, and read for generation. */
    @Test(timeOut = 240_000)
    public void trainsAdapters() throws Exception {
        double[] expected = null;
        for (String options : List.of("--tp 1", "--tp 3 --lora-targets q_proj,v_proj")) {
            Path saved = folder.resolve("adapters" + options.length());
            TpRun run =
                    TpRun.withJson(
                            command("--lora 2 --steps 6 --eval " + data + " --save ")
                                    + saved
                                    + " "
                                    + options);
            run.assertPrints(0, "Saved " + saved);
            double[] losses = run.losses();
            expected = expected == null ? losses : expected;
            for (int i = 0; i < 6; i++) {
                Assert.assertEquals(losses[i], expected[i], 1e-5 * expected[i], options);
            }
            double start = evaluations(run)[0];
            Assert.assertTrue(evaluations(run)[2] < start, run.output());
            JsonObject config = TpRun.json(saved.resolve("adapter_config.json"));
            Assert.assertEquals(config.get("r").getAsInt(), 2);
            Assert.assertEquals(config.get("lora_alpha").getAsDouble(), 4.0);
            try (LanguageModel loaded = LanguageModel.builder(model).optAdapter(saved).load()) {
                loaded.readWhole();
            }
        }
    }

    /** A process that is killed between two checkpoints ends with the same bits. */
    @Test(timeOut = 240_000)
    public void resumesAfterAKill() throws Exception {
        String options = "--steps 12 --accumulate 2 --bucket --tp 2 --eval " + data + " --save ";
        TpRun.line(command(options + folder.resolve("whole"))).assertPrints(0);
        String saved = command(options + folder.resolve("resumed"));
        Path out = folder.resolve("run");
        saved += " --checkpoint-steps 2 --out " + out;
        try (ForkedTp process = ForkedTp.start(Map.of(), List.of(saved.split(" ")))) {
            Path checkpoints = out.resolve("checkpoints");
            while (process.isAlive()
                    && (!Files.exists(checkpoints) || Checkpoint.list(checkpoints).isEmpty())) {
                Thread.sleep(2);
            }
            ForkedTp.Result result = process.kill();
            Assert.assertEquals(result.status(), 137, result.toString());
        }
        TpRun run = TpRun.line(saved + " --resume");
        run.assertPrints(0, "Going on after step ");
        String file = "model.safetensors";
        Assert.assertEquals(
                Files.mismatch(
                        folder.resolve("whole").resolve(file),
                        folder.resolve("resumed").resolve(file)),
                -1,
                run.output());
    }

    /** Two processes of a launcher train as one does. */
    @Test(timeOut = 240_000)
    public void processesTrainTheSame() throws Exception {
        String options =
                "--steps 3 --tp 4 --timeout 60 --eval-share 0.3 --save " + folder.resolve("job");
        List<ForkedTp.Result> results =
                ForkedTp.job(
                        JobVariables.ofAll(2),
                        i -> command(options + i + " --json " + folder.resolve(i + ".json")));
        for (int i = 0; i < 2; i++) {
            Assert.assertEquals(results.get(i).status(), 0, results.toString());
            Assert.assertEquals(results.get(i).out().isEmpty(), i > 0, results.toString());
            Assert.assertEquals(Files.exists(folder.resolve("job" + i)), i == 0);
        }
        TpRun alone = TpRun.withJson(command(options + "Alone"));
        for (String figure : List.of("loss", "evaluation_loss")) {
            Assert.assertEquals(
                    TpRun.json(folder.resolve("0.json")).get(figure),
                    alone.figures().getAsJsonObject().get(figure));
        }
    }

    @DataProvider
    public Object[][] wrong() throws IOException {
        Path empty = Files.createFile(folder.resolve("empty.jsonl"));
        Path bad = Files.writeString(folder.resolve("bad.jsonl"), "{\"text\": \"a\"}\n{\"a\": 1}");
        Path other = Files.createDirectories(folder.resolve("other"));
        Files.writeString(other.resolve("config.json"), "{}");
        Path broken = Files.createDirectory(folder.resolve("broken"));
        for (String name : List.of("config.json", "tokenizer.json", "model.safetensors")) {
            Files.copy(model.resolve(name), broken.resolve(name));
        }
        RandomFolder.writeNaN(broken);
        return new Object[][] {
            {"finetune # --data @ --save " + other, "has a model, its config.json: choose"},
            {"finetune none --data @ --save new", "There is no folder none"},
            {"finetune # --data none --save new", "--data none is no file"},
            {"finetune # --data @ --eval none --save new", "--eval none is no file"},
            {"finetune # --data @", "Missing required option: '--save"},
            {"finetune # --data @ --save #", "has a model, its model.safetensors: choose another"},
            {"finetune # --data @ --save @", "is a file: name a folder"},
            {"finetune # --data " + empty + " --save new", empty + " has no text"},
            {
                "finetune # --data " + bad + " --save new",
                bad + ", line 2: the object has the fields"
            },
            {"finetune # --data @ --save new --length 49", "from 1 to the 48 positions"},
            {"finetune # --data @ --save new --length 2", "begins within 2 tokens"},
            {"finetune # --data @ --save new --lr 0", "--lr must be greater than 0"},
            {"finetune # --data @ --save new --warmup -1", "--warmup must be 0 or more"},
            {"finetune # --data @ --save new --dtype int8", "--dtype must be float32, bfloat16"},
            {"finetune # --data @ --save new --eval-share 1", "must be between 0 and 1"},
            {"finetune # --data @ --save new --eval @ --eval-share 0.1", "not both"},
            {"finetune # --data @ --save new --epochs 1 --steps 1", "not both"},
            {"finetune # --data @ --save new --mesh 4x1 --batch 3", "--batch 3 is smaller"},
            {
                "finetune # --data " + bad + " --save new --tp 6",
                "--tp 6 leaves ranks without a head"
            },
            {"finetune # --data @ --save new --lora 0", "--lora must be greater than 0"},
            {"finetune # --data @ --save new --alpha 2", "--alpha is for adapters: give their"},
            {"finetune # --data @ --save new --lora-targets q_proj", "--lora-targets is for"},
            {"finetune # --data @ --save new --lora 2 --lora-targets x", "of the name [x]"},
            {"finetune " + broken + " --data @ --save new", "is NaN: the weights in " + broken},
            {"finetune / --data @ --save new", "There is no /config.json"},
        };
    }

    @Test(dataProvider = "wrong", timeOut = 60_000)
    public void wrongOptionsAreNamed(String command, String message) {
        TpRun.line(command.replace("#", model.toString()).replace("@", data.toString()))
                .assertPrints(2, message);
        Assert.assertFalse(Files.exists(Path.of("new")));
    }
}

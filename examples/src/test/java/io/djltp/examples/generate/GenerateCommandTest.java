package io.djltp.examples.generate;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.JobVariables;
import io.djltp.examples.TpRun;
import io.djltp.llm.RandomFolder;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** The command generates with a model that {@code tp lm} has trained, on ranks and processes. */
public class GenerateCommandTest {

    private final Path folder = TestFolder.create();
    private Path model;

    @BeforeClass
    public void train() throws IOException {
        model = folder.resolve("model");
        TpRun.languageModel(model, "--context 32 --batch 4 --steps 5");
    }

    private JsonObject run(String options, String... printed) throws IOException {
        Path json = folder.resolve("run.json");
        TpRun.line("generate " + model + " --json " + json + " " + options)
                .assertPrints(0, printed);
        return TpRun.json(json);
    }

    @Test(timeOut = 240_000)
    public void generatesTheSameOnAnyRanks() throws IOException {
        for (String options :
                List.of(
                        "--temperature 0",
                        "--temperature 1 --top-p 0.9 --seed 3",
                        "--temperature 1.5 --top-k 9 --min-p 0.01 --repetition-penalty 1.1")) {
            JsonArray tokens = null;
            for (int ranks : new int[] {1, 2, 3, 5}) {
                JsonObject run = run("-p The --tokens 20 --logits --tp " + ranks + " " + options);
                int count = run.get("tokens").getAsJsonArray().size();
                boolean stopped = run.get("finish_reason").getAsString().equals("stop");
                Assert.assertTrue(count == 20 || stopped && count < 20, "" + count);
                Assert.assertEquals(run.get("ranks").getAsInt(), ranks);
                Assert.assertEquals(run.get("bytes_per_rank").getAsJsonArray().size(), ranks);
                Assert.assertTrue(run.get("seconds_prefill").getAsDouble() > 0);
                Assert.assertTrue(run.get("seconds_decode").getAsDouble() > 0);
                Assert.assertTrue(run.has("text"));
                Assert.assertTrue(run.get("logits").getAsJsonArray().size() > 100);
                JsonArray own = run.get("tokens").getAsJsonArray();
                Assert.assertTrue(tokens == null || tokens.equals(own), options + " on " + ranks);
                tokens = own;
            }
        }
    }

    /** The stop strings of the model end a text, unless others are given. */
    @Test(timeOut = 120_000)
    public void endsAtTheStopStringsOfTheModel() throws IOException {
        String how = "-p The --temperature 0 --tokens 20";
        String text = run(how).get("text").getAsString();
        Path own = copy("stops");
        String stops = new Gson().toJson(Map.of("stop_strings", List.of(text.substring(2, 4))));
        Files.writeString(own.resolve("generation_config.json"), stops);
        Path json = folder.resolve("run.json");
        String command = "generate " + own + " " + how + " --json " + json;
        TpRun.line(command).assertPrints(0);
        String cut = TpRun.json(json).get("text").getAsString();
        Assert.assertEquals(cut, text.substring(0, text.indexOf(text.substring(2, 4))));
        TpRun.line(command + " --stop not/there").assertPrints(0);
        Assert.assertEquals(TpRun.json(json).get("text").getAsString(), text);
    }

    /** With ids, and weights of each type. */
    @Test(timeOut = 120_000)
    public void takesIdsAndSmallWeights() throws IOException {
        for (String weights : List.of("float32", "bfloat16", "float16", "INT8")) {
            String options = "--ids 5,6,7 --tokens 4 --logits --threads 2 --weights " + weights;
            JsonObject run = run(options, "3 tokens of the prompt in ");
            Assert.assertEquals(run.get("ids").toString(), "[5,6,7]");
            Assert.assertEquals(run.get("weights").getAsString(), weights.toLowerCase(Locale.ROOT));
            Assert.assertFalse(run.get("kernel").getAsString().isEmpty());
        }
        JsonObject all = run("--ids 5 --tokens 40 --temperature 0");
        Assert.assertEquals(all.get("finish_reason").getAsString(), "length");
        Assert.assertEquals(all.get("tokens").getAsJsonArray().size(), 31, "the context is full");
    }

    /** Two processes of a launcher generate what one does. */
    @Test(timeOut = 240_000)
    public void processesGenerateTheSame() throws Exception {
        String command =
                ("generate %s --ids 9,8,7 --tokens 12 --tp 4 --seed 2 --temperature 0.9"
                                + " --timeout 60 --json ")
                        .formatted(model);
        List<ForkedTp.Result> results =
                ForkedTp.job(JobVariables.ofAll(2), i -> command + folder.resolve(i + ".json"));
        for (int i = 0; i < 2; i++) {
            Assert.assertEquals(results.get(i).status(), 0, results.toString());
            Assert.assertEquals(results.get(i).out().isEmpty(), i > 0, results.toString());
            Assert.assertEquals(Files.exists(folder.resolve(i + ".json")), i == 0);
        }
        JsonObject alone = run("--ids 9,8,7 --tokens 12 --tp 4 --seed 2 --temperature 0.9");
        Assert.assertEquals(
                TpRun.json(folder.resolve("0.json")).get("tokens"), alone.get("tokens"));
    }

    /** Lines of standard input are the messages of a chat; -p with --chat is one of a message. */
    @Test(timeOut = 120_000)
    public void chats() throws IOException {
        Path chat = copy("chat");
        String template =
                "{%- for m in messages %}{% if m.content == 'no' %}{{ raise_exception('not no') }}"
                        + "{% endif %}{{ m.content }}\n{% endfor %}";
        Files.writeString(chat.resolve("chat_template.jinja"), template);
        String lines =
                "The\nno\n\n{{ x }}\n" + "long ".repeat(20) + "\n/foo\n/reset\nThe\n/exit\nAnd\n";
        TpRun run = chat(chat, lines, " --tokens 3 --temperature 0 --system S --tp 2");
        run.assertPrints(
                0, "/exit ends.", "line 1: not no", "The prompt has", "/foo is not known: /reset");
        String[] answers = run.output().split("> ", -1);
        Assert.assertEquals(answers.length, 10, run.output());
        Assert.assertEquals(answers[1], answers[8], "a new chat gives the same");
        TpRun one =
                TpRun.line(
                        "generate "
                                + chat
                                + " --tokens 3 --temperature 0 --system S -p The --chat");
        one.assertPrints(0, answers[1]);
    }

    /** Each answer draws other numbers, and each chat of a seed the same. */
    @Test(timeOut = 120_000)
    public void drawsOtherNumbersForEachAnswer() throws IOException {
        Path chat = copy("draws");
        Files.writeString(chat.resolve("chat_template.jinja"), "{{ messages[-1].content }}");
        String how = " --tokens 12 --temperature 2 --seed 7";
        String output = chat(chat, "The\n/reset\nThe\n", how).output();
        String[] answers = output.split("> ", -1);
        Assert.assertNotEquals(answers[1], answers[3], output);
        Assert.assertEquals(chat(chat, "The\n/reset\nThe\n", how).output(), output);
    }

    private static TpRun chat(Path folder, String lines, String how) {
        InputStream in = System.in;
        System.setIn(new ByteArrayInputStream(lines.getBytes(StandardCharsets.UTF_8)));
        try {
            return TpRun.line("generate " + folder + how);
        } finally {
            System.setIn(in);
        }
    }

    private Path copy(String folderName) throws IOException {
        Path copy = Files.createDirectory(folder.resolve(folderName));
        for (String name : List.of("config.json", "model.safetensors", "tokenizer.json")) {
            Files.copy(model.resolve(name), copy.resolve(name));
        }
        return copy;
    }

    /** At Ctrl-C an answer ends, which would take long, and the next message is answered. */
    @Test(timeOut = 120_000)
    public void controlCEndsAnAnswer() throws Exception {
        Path chat = copy("endless");
        JsonObject config = TpRun.json(chat.resolve("config.json"));
        config.remove("eos_token_id");
        config.addProperty("max_position_embeddings", 50_000);
        Files.writeString(chat.resolve("config.json"), config.toString());
        Files.writeString(chat.resolve("chat_template.jinja"), "{{ messages[-1].content }}");
        // what is started in the background ignores SIGINT
        List<String> command = new ArrayList<>(List.of("env", "--default-signal=INT"));
        if (new ProcessBuilder("env", "--default-signal=INT", "true").start().waitFor() != 0) {
            throw new SkipException("env sets no signals: use that of GNU coreutils");
        }
        command.addAll(ForkedTp.command());
        command.addAll(
                List.of("generate", chat.toString(), "--tokens", "49000", "--length", "50000"));
        try (ForkedTp process = ForkedTp.script(command, Map.of())) {
            process.type("The\n");
            process.awaitOutput(out -> out.split("> ", -1).length == 2 && out.length() > 200);
            process.send("INT");
            process.awaitOutput(out -> out.split("\n> ", -1).length == 3);
            process.type("The\n");
            process.awaitOutput(out -> out.length() - out.lastIndexOf("\n> ") > 50);
            process.send("INT");
            process.awaitOutput(out -> out.endsWith("\n> "));
            ForkedTp.Result result = process.signal("INT");
            Assert.assertEquals(result.status(), 130, result.toString());
            Assert.assertEquals(result.out().split("\n> ", -1).length, 4, result.out());
            Assert.assertFalse(result.err().contains("Exception"), result.err());
        }
    }

    @Test(timeOut = 60_000)
    public void textsNeedATokenizer() throws IOException {
        Path copy = copy("ids");
        Files.delete(copy.resolve("tokenizer.json"));
        TpRun.line("generate " + copy + " --ids 1 --tokens 2").assertPrints(0);
        Files.writeString(copy.resolve("chat_template.jinja"), "{{ messages[-1].content }}");
        String length = " --length 33"; // of which the generator would complain
        for (String text : List.of("", " -p a", " -p a --chat", " --ids 1 --stop a")) {
            TpRun.line("generate " + copy + text + length)
                    .assertPrints(2, "There is no tokenizer.json in " + copy + ": add that file");
        }
        TpRun.line("generate " + copy + " --ids 1 --temperature -1" + length)
                .assertPrints(2, "The temperature must be 0 or more");
    }

    @Test(timeOut = 60_000)
    public void weightsThatAreNoNumbersAreSaid() throws IOException {
        Path broken = copy("broken");
        RandomFolder.writeNaN(broken);
        TpRun run = TpRun.line("generate " + broken + " -p a --tp 2");
        run.assertPrints(1, "tp: The largest logit is NaN: the weights of the model have numbers");
        Assert.assertFalse(run.output().contains("\tat "), run.output());
    }

    @DataProvider
    public Object[][] wrong() {
        return new Object[][] {
            {"generate none -p a", "There is no folder none"},
            {"generate @", "There is no chat template in"},
            {"generate @ --chat -p a", "There is no chat template in"},
            {"generate @ --chat --ids 1", "--chat needs a prompt, -p"},
            {"generate @ -p a --system b", "--system needs --chat"},
            {"generate @ --json x", "A chat is for one process and writes no --json"},
            {"generate @ -p a --ids 1", "Give the prompt as a text"},
            {"generate @ -p a --tokens 0", "--tokens must be greater than 0"},
            {"generate @ -p a --threads 0", "--threads must be greater than 0"},
            {"generate @ -p a --tp 6", "6 ranks are more than the 5 query heads"},
            {"generate @ -p a --weights int3", "expected one of [float32, bfloat16,"},
            {"generate @ -p a --temperature -1", "The temperature must be 0 or more"},
            {"generate @ -p a --top-p 2", "(top-p) must be above 0 and at most 1"},
            {"generate @ -p a --length 33", "The model is made for 32 positions"},
            {"generate @ --ids 1,99999", "The id 99999 of the prompt is none of"},
            {"generate @ --ids 1,x", "--ids"},
            {"generate @ -p a --logits", "--logits need --json FILE"},
            {"generate @ -p a --json no/such/folder/file", "--json"},
            {"generate / -p a", "There is no /config.json"},
        };
    }

    @Test(dataProvider = "wrong", timeOut = 60_000)
    public void wrongOptionsAreNamed(String command, String message) {
        TpRun.line(command.replace("@", model.toString())).assertPrints(2, message);
    }
}

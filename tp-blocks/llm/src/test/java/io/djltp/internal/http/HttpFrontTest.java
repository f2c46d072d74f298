package io.djltp.internal.http;

import io.djltp.testing.Unchecked;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.function.UnaryOperator;

/** A server that ends counts whom it waits for. */
public class HttpFrontTest {

    @Test(timeOut = 60_000)
    public void whoAsksForAPlaceWhenItEndsGetsNone() throws Exception {
        CountDownLatch come = new CountDownLatch(1);
        CountDownLatch ending = new CountDownLatch(1);
        HttpFront[] front = new HttpFront[1];
        HttpFront.Service service =
                call -> {
                    come.countDown();
                    Unchecked.run(ending::await);
                    front[0].admit(1, 1, call.request());
                    call.send(HttpFront.JSON, "{}");
                };
        front[0] =
                new HttpFront(
                        "127.0.0.1",
                        0,
                        null,
                        Duration.ofSeconds(30),
                        Map.of("/text", "POST"),
                        UnaryOperator.identity(),
                        new HttpMetrics(),
                        service);
        front[0].listen();
        front[0].setReady(1);
        HttpRequest request =
                HttpRequest.newBuilder(
                                URI.create("http://127.0.0.1:" + front[0].getPort() + "/text"))
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString("{}"))
                        .build();
        CompletableFuture<HttpResponse<String>> answer =
                HttpClient.newHttpClient().sendAsync(request, HttpResponse.BodyHandlers.ofString());
        come.await();
        front[0].close(
                Duration.ZERO,
                () -> {
                    ending.countDown();
                    answer.join();
                },
                () -> {});
        Assert.assertEquals(answer.get().statusCode(), 503, answer.get().body());
        Assert.assertTrue(answer.get().body().contains("The server ends"), answer.get().body());
    }
}

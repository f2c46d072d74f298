package io.djltp.forecast;

/** A loss that communicates, and can say what, from shapes alone. */
public interface ForecastLoss {

    /**
     * Notes what the loss will communicate.
     *
     * @param pass the pass of one rank
     * @param predictions the output of the network
     */
    void forecast(PassForecast pass, ForecastArray predictions);
}

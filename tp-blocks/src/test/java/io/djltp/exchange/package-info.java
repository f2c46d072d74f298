/** Tests of the exchange of weights with others. */
package io.djltp.exchange;

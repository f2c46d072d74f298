/** Tests of the search. */
package io.djltp.search;

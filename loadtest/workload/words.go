package workload

// words are common English words, roughly by frequency.
const words = `
the of and to a in is it that was for on are as with his they at be this have from or
one had by word but not what all were we when your can said there use an each which she
do how their if will up other about out many then them these so some her would make like
him into time has look two more write go see number no way could people my than first
water been call who oil its now find long down day did get come made may part over new
sound take only little work know place year live me back give most very after thing our
just name good sentence man think say great where help through much before line right
too mean old any same tell boy follow came want show also around form three small set
put end does another well large must big even such because turn here why ask went men
read need land different home us move try kind hand picture again change off play spell
air away animal house point page letter mother answer found study still learn should
country plant cover food sun four between state keep eye never last let thought city
tree cross farm hard start might story saw far sea draw left late run while press close
night real life few north open seem together next white children begin got walk example
ease paper group always music those both mark often until mile river car feet care
second book carry took science eat room friend began idea fish mountain stop once base
hear horse cut sure watch color face wood main enough plain girl usual young ready above
ever red list though feel talk bird soon body dog family direct pose leave song measure
door product black short class wind question happen complete ship area half rock order
fire south problem piece told knew pass since top whole king space heard best hour
better true during hundred five remember step early hold west ground interest reach fast
verb sing listen six table travel less morning ten simple several vowel toward war lay
against pattern slow center love person money serve appear road map rain rule govern
pull cold notice voice unit power town fine certain fly fall lead cry dark machine note
wait plan figure star box noun field rest correct able pound done beauty drive stood
contain front teach week final gave green quick develop ocean warm free minute strong
special mind behind clear tail produce fact street inch multiply nothing course stay
wheel full force blue object decide surface deep moon island foot system busy test
record boat common gold possible plane stead dry wonder laugh thousand ago ran check
game shape equate hot miss brought heat snow tire bring yes distant fill east paint
language among
`
